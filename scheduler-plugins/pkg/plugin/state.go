// Package plugin adapts the decisions of the pure packages to kube-scheduler's extension points. It decides nothing itself: it
// reads pods, nodes and Gang objects, asks, and carries out.
//
// Locks: the scheduling cycle, binding goroutines, informer handlers and the queue (PreEnqueue, hints, under its own lock) all
// come here. State.mu guards the records and is never held while the queue, the API server or a waiting pod is called.
package plugin

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	listersv1 "k8s.io/client-go/listers/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/utils/clock"

	"coach.dev/scheduler-plugins/pkg/api"
	"coach.dev/scheduler-plugins/pkg/backfill"
	"coach.dev/scheduler-plugins/pkg/config"
	"coach.dev/scheduler-plugins/pkg/gangstate"
	"coach.dev/scheduler-plugins/pkg/identity"
	"coach.dev/scheduler-plugins/pkg/order"
	"coach.dev/scheduler-plugins/pkg/planner"
	"coach.dev/scheduler-plugins/pkg/preempt"
	"coach.dev/scheduler-plugins/pkg/reason"
)

// State is what the plugins of all profiles of one scheduler share.
type State struct {
	clock   clock.WithTicker
	ledger  *gangstate.Ledger
	wake    *waker
	drains  *drainer
	picture picture
	pods    listersv1.PodLister
	handle  fwk.Handle        // of the first profile
	client  dynamic.Interface // for Gang objects; nil where there is no API server
	knobs   config.Gang
	given   bool        // knobs come from a profile
	ready   atomic.Bool // everything that exists was seen
	gated   atomic.Bool // there is a plugin that holds pods before the queue

	mu       sync.RWMutex
	gangs    map[identity.Key]*api.Gang // the objects; they are never changed in place
	records  map[identity.Key]*record
	untried  map[identity.Key]turn      // gangs whose needed members are on their way to a plan
	paced    map[identity.Key]order.Key // gangs that come next, when the bindings under way are through
	keys     map[types.UID]*order.Key   // made before a pod enters the queue, never changed
	since    map[identity.Key]time.Time // when a job under the thesis's rules was first seen
	profiles map[string]profile         // by scheduler name
	started  bool
	serving  bool
}

const starting = "Placing: the scheduler is starting and has not seen all pods yet"

type profile int

const (
	coachProfile profile = iota + 1
	thesisProfile
)

// record is what is known of a gang beside its pods and its object.
type record struct {
	verdict  reason.Reason
	told     reason.Reason // the last verdict that became an event
	order    order.Key
	since    time.Time // when it began to wait for room; zero while it does not
	bypassed int
	victims  []identity.Key // that are leaving for it
	absent   *absence       // its pods were deleted to make room and are not made again yet; nil: they are there
	barred   map[identity.Role]map[string]bool
	failures int  // plans in a row that other plugins refused
	hungry   bool // some wanted member found no room
	present  int  // pods when some last came or went while needed ones were missing
	arrived  time.Time
}

// NewState of a scheduler that has seen nothing yet.
func NewState(clock clock.WithTicker) *State {
	s := &State{clock: clock, ledger: gangstate.New(), knobs: config.Default(), gangs: map[identity.Key]*api.Gang{},
		records: map[identity.Key]*record{}, keys: map[types.UID]*order.Key{}, untried: map[identity.Key]turn{}, paced: map[identity.Key]order.Key{},
		since: map[identity.Key]time.Time{}, profiles: map[string]profile{}}
	s.wake, s.drains = newWaker(s), newDrainer(s)
	return s
}

// view is a gang at one instant.
type view struct {
	key            identity.Key
	object         *api.Gang // nil: not created yet
	needed, wanted planner.Counts
	mistake        string
	bound          []gangstate.Pod
	asking         []gangstate.Pod
	seats          map[string]gangstate.Seat
	missing        planner.Counts // needed members that neither stand nor are on their way
	recalled       map[string]*v1.Pod
	offered        []gangstate.Pod // asking pods without a seat, at most as many of each role as are wanted
	surplus        []gangstate.Pod // the others
}

func (s *State) view(key identity.Key) view {
	v := view{key: key}
	v.object = s.object(key)
	v.bound, v.asking, v.seats = s.ledger.Members(key)
	if v.object == nil {
		v.offered = v.asking
		return v
	}
	v.needed, v.wanted, v.mistake = v.object.Counts()
	var present planner.Counts
	for _, pod := range v.bound {
		present[rank(pod.Role)]++
	}
	for _, pod := range v.asking {
		if _, seated := v.seats[pod.UID]; seated {
			present[rank(pod.Role)]++
		}
	}
	for i := range v.missing {
		v.missing[i] = max(v.needed[i]-present[i], 0)
	}
	for _, pod := range v.asking {
		if _, seated := v.seats[pod.UID]; seated {
			continue
		}
		if i := rank(pod.Role); present[i] < v.wanted[i] {
			present[i]++
			v.offered = append(v.offered, pod)
		} else {
			v.surplus = append(v.surplus, pod)
		}
	}
	return v
}

func rank(role identity.Role) int {
	rank, _ := role.Rank()
	return rank
}

// lacking gives the needed members that do not exist.
func (v *view) lacking() planner.Counts {
	lacking := v.missing
	for _, pod := range v.offered {
		if i := rank(pod.Role); lacking[i] > 0 {
			lacking[i]--
		}
	}
	return lacking
}

// gate gives the reason to hold one pod before the queue, or nil. Of a gang that needs places only its first needed pod goes in:
// it plans for all, so a gang that cannot start costs one pod's cycle, and the others follow when it has a plan.
func (s *State) gate(v *view, uid string) *reason.Reason {
	if _, seated := v.seats[uid]; seated {
		return nil
	}
	if v.object == nil || v.object.Status.Draining != nil || v.mistake != "" || v.lacking().Total() > 0 || v.missing.Total() == 0 {
		s.yield(v.key)
	}
	hold := func(token reason.Token, text string) *reason.Reason { return &reason.Reason{Token: token, Text: text} }
	switch {
	case v.object == nil:
		return hold(reason.WaitingMembers, "Gang object "+v.key.String()+" is not created")
	case v.object.Status.Draining != nil:
		return hold(reason.Draining, "gives way to gang "+v.object.Status.Draining.By+", and is planned again when its pods are gone")
	case v.mistake != "":
		return hold(reason.Misconfigured, v.mistake)
	case slices.ContainsFunc(v.surplus, func(p gangstate.Pod) bool { return p.UID == uid }):
		return hold(reason.Misconfigured, "more pods of this role than the Gang object wants")
	case v.lacking().Total() > 0:
		plan := planner.PlanNeeded(planner.NewSnapshot(nil, nil, nil, 0), v.gang(), nil)
		return plan.Wait
	case v.missing.Total() == 0:
		if s.someoneNeeds(v.key) {
			s.mu.Lock()
			s.record(v.key).hungry = true
			s.mu.Unlock()
			return hold(reason.ShadowReserved, "wanted, but other gangs still wait for needed members")
		}
		return nil
	}
	if first := v.first(); first.UID != uid {
		return hold(reason.Placing, "goes when "+first.Name+" has planned for the gang")
	}
	if !s.admit(v) {
		return hold(reason.Placing, "comes next, when the bindings under way are through")
	}
	return nil
}

// first is the pod that plans for the gang.
func (v *view) first() gangstate.Pod {
	for _, pod := range v.offered {
		if v.missing[rank(pod.Role)] > 0 {
			return pod
		}
	}
	return v.offered[0]
}

// gang without nodes, for verdicts that need none.
func (v *view) gang() *planner.Gang {
	g := &planner.Gang{Key: v.key, Needed: v.needed, Mistake: v.mistake, Length: -1}
	add := func(pod gangstate.Pod, to *[]planner.Member, node int) {
		*to = append(*to, planner.Member{Name: pod.Name, Role: pod.Role, Index: pod.Index, Node: node})
	}
	for _, pod := range v.bound {
		add(pod, &g.Settled, 0)
	}
	for _, pod := range v.asking {
		if _, seated := v.seats[pod.UID]; seated {
			add(pod, &g.Members, 0)
		}
	}
	for _, pod := range v.offered {
		add(pod, &g.Members, planner.NoNode)
	}
	return g
}

// order of a gang among those that wait: the priority of its first pod, then trial-and-error gangs where they may preempt others, then
// when its object was made.
func (s *State) order(v *view) order.Key {
	key := order.Key{Gang: v.key.String()}
	if len(v.asking) > 0 {
		key.Priority = v.asking[0].Priority
	} else if len(v.bound) > 0 {
		key.Priority = v.bound[0].Priority
	}
	if v.object != nil {
		key.Since = v.object.CreationTimestamp.UnixNano()
		key.BestEffort = s.knobs.Preemption != preempt.Never && !v.object.Spec.TrialAndError
	}
	return key
}

// freeze makes the queue key of a pod, once.
func (s *State) freeze(pod *v1.Pod, key order.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.keys[pod.UID] == nil {
		s.keys[pod.UID] = &key
	}
}

// record of a gang, made when it is first asked for; the caller holds mu.
func (s *State) record(key identity.Key) *record {
	r := s.records[key]
	if r == nil {
		r = &record{}
		s.records[key] = r
	}
	return r
}

// head is the first gang in queue order that has a claim on room; nil if that is the gang itself, or none.
func (s *State) head(but identity.Key, before *order.Key) (identity.Key, *record) {
	now := s.clock.Now()
	s.mu.RLock()
	defer s.mu.RUnlock()
	var key identity.Key
	var first *record
	for k, r := range s.records {
		if at, claims := r.claim(now); k == but || !claims || (before != nil && !order.Less(&at, before)) {
			continue
		}
		if first == nil || order.Less(&r.order, &first.order) {
			key, first = k, r
		}
	}
	if first == nil {
		return key, nil
	}
	copied := *first
	return key, &copied
}

// ends gives in how many seconds each gang that holds room is predicted to give it back.
func (s *State) ends() map[identity.Key]float64 {
	now := s.clock.Now()
	s.mu.RLock()
	defer s.mu.RUnlock()
	ends := map[identity.Key]float64{}
	for key, gang := range s.gangs {
		if end, known := gang.Ends(now); known {
			ends[key] = end
		}
	}
	return ends
}

func (s *State) knob(r *record) backfill.Knob {
	return backfill.Knob{Policy: s.knobs.Backfill, Limits: s.knobs.Limits(), Bypassed: r.bypassed, Waited: s.clock.Since(r.since).Seconds()}
}

// leaving lists the gangs that are being preempted.
func (s *State) leaving() []identity.Key {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var leaving []identity.Key
	for _, r := range s.records {
		leaving = append(leaving, r.victims...)
	}
	for key, object := range s.gangs {
		if object.Status.Draining != nil {
			leaving = append(leaving, key)
		}
	}
	slices.SortFunc(leaving, func(a, b identity.Key) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Job, b.Job))
	})
	return slices.Compact(leaving)
}

// podOf reads what the ledger keeps of a pod. ok is false for pods that are not ours or whose role nobody knows.
func podOf(pod *v1.Pod) (gangstate.Pod, bool) {
	member, ours, err := identity.Of(pod.Namespace, pod.Labels)
	if !ours || err != nil {
		return gangstate.Pod{}, false
	}
	index, _ := strconv.Atoi(pod.Labels[identity.IndexLabel]) // absent: 0, and names decide
	return gangstate.Pod{UID: string(pod.UID), Name: pod.Name, Gang: member.Gang, Role: member.Role, Index: index,
		Priority: priority(pod), Node: pod.Spec.NodeName, Leaving: pod.DeletionTimestamp != nil, Request: requestOf(pod)}, true
}

func priority(pod *v1.Pod) int32 {
	if pod.Spec.Priority == nil {
		return 0
	}
	return *pod.Spec.Priority
}

// objectsOf gives the API objects of pods, without those that are gone by now.
func (s *State) objectsOf(pods []gangstate.Pod) map[string]*v1.Pod {
	objects := map[string]*v1.Pod{}
	for _, pod := range pods {
		object, err := s.pods.Pods(pod.Gang.Namespace).Get(pod.Name)
		if err == nil && string(object.UID) == pod.UID {
			objects[pod.Gang.Namespace+"/"+pod.Name] = object
		}
	}
	return objects
}

// drop a gang's plan: its room is given back, its members that wait for each other are called back, and it is tried again.
func (s *State) drop(ctx context.Context, handle fwk.Handle, key identity.Key, after time.Duration) {
	reserved, dropped := s.ledger.Drop(key, s.clock.Now())
	for _, uid := range reserved {
		handle.RejectWaitingPod(types.UID(uid))
	}
	if dropped > 0 {
		metrics.dropped.Inc()
		s.wake.turn()
	}
	s.wake.gang(key, after)
}
