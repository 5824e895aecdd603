// Package plugin adapts the decisions of the pure packages to kube-scheduler's extension points. It decides nothing itself: it
// reads pods, nodes and Gang objects, asks the pure packages, and carries out their answers.
//
// Locks: the scheduling cycle, binding goroutines, informer handlers and the scheduling queue (PreEnqueue and hints, under its own
// lock) all call this package. State.mu guards the records and is never held while the queue, the API server or a waiting pod is called.
package plugin

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	listersv1 "k8s.io/client-go/listers/core/v1"
	"k8s.io/component-helpers/scheduling/corev1"
	fwk "k8s.io/kube-scheduler/framework"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/utils/clock"

	"coach.dev/scheduler-plugins/pkg/api"
	"coach.dev/scheduler-plugins/pkg/backfill"
	"coach.dev/scheduler-plugins/pkg/backpressure"
	"coach.dev/scheduler-plugins/pkg/config"
	"coach.dev/scheduler-plugins/pkg/gangstate"
	"coach.dev/scheduler-plugins/pkg/identity"
	"coach.dev/scheduler-plugins/pkg/order"
	"coach.dev/scheduler-plugins/pkg/planner"
	"coach.dev/scheduler-plugins/pkg/plugin/capacityguard"
	"coach.dev/scheduler-plugins/pkg/plugin/metrics"
	"coach.dev/scheduler-plugins/pkg/plugin/queuesort"
	"coach.dev/scheduler-plugins/pkg/plugin/requeue"
	"coach.dev/scheduler-plugins/pkg/plugin/snapshot"
	"coach.dev/scheduler-plugins/pkg/plugin/thesisprofile"
	"coach.dev/scheduler-plugins/pkg/preempt"
	"coach.dev/scheduler-plugins/pkg/reason"
)

// State is what the plugins of all profiles of one scheduler share.
type State struct {
	clock      clock.WithTicker
	gangPods   *gangstate.Store
	requeue    *requeue.Queue
	limiter    *backpressure.Limiter
	queue      *queuesort.Plugin
	guard      *capacityguard.Plugin
	thesis     *thesisprofile.Plugin
	preemption *preemption
	nodes      snapshot.NodeCache
	pods       listersv1.PodLister
	handle     fwk.Handle        // of the first profile
	client     dynamic.Interface // for Gang objects; nil where there is no API server
	args       config.Gang
	configured bool        // args come from a profile
	synced     atomic.Bool // all objects that exist were seen
	hasGate    atomic.Bool // some profile enables CoachGate

	mu       sync.RWMutex
	gangs    map[identity.Key]*api.Gang // the objects; they are never changed in place
	records  map[identity.Key]*record
	kept     map[identity.Key]*keptRoom
	profiles map[string]profile // by scheduler name
	started  bool
	serving  bool
}

type profile int

const (
	coachProfile profile = iota + 1
	thesisProfile
)

// record is what is known of a gang in addition to its pods and its object.
type record struct {
	status         reason.Reason
	reported       reason.Reason // the last status that became an event
	order          order.Key
	pendingSince   time.Time // when it began to wait for capacity; zero while it does not
	bypassed       int
	victims        []identity.Key // that are being preempted for it
	returning      *returningGang // its pods were deleted by a preemption and are not recreated yet; nil: they exist
	refusals       refusals
	lacksOptional  bool // some optional member has no node
	present        int  // pods when the last one came or went while required ones were missing
	presentChanged time.Time
}

// NewState of a scheduler that has seen nothing yet.
func NewState(clock clock.WithTicker) *State {
	s := &State{clock: clock, gangPods: gangstate.New(), requeue: requeue.New(), queue: queuesort.New(), args: config.Default(),
		gangs: map[identity.Key]*api.Gang{}, records: map[identity.Key]*record{}, kept: map[identity.Key]*keptRoom{},
		profiles: map[string]profile{}}
	s.limiter = backpressure.New(clock.Now, s.gangPods, s.requeue)
	s.guard = capacityguard.New(s.gangPods)
	s.thesis = thesisprofile.New(s.gangPods, s.queue, s.synced.Load)
	s.preemption = newPreemption(s)
	return s
}

// Registry has the factories of all plugins, by name.
func (s *State) Registry() frameworkruntime.Registry {
	return frameworkruntime.Registry{
		queuesort.Name:     func(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) { return s.queue, nil },
		capacityguard.Name: func(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) { return s.guard, nil },
		thesisprofile.Name: func(ctx context.Context, _ runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
			return s.thesis, s.start(ctx, handle, thesisProfile)
		},
		GateName: s.newGate,
		GangName: s.newGang,
	}
}

// view is a gang at one instant.
type view struct {
	key               identity.Key
	object            *api.Gang // nil: not created yet
	required, desired planner.Counts
	invalid           string // what contradicts itself in the object
	bound             []gangstate.Pod
	pending           []gangstate.Pod
	assignments       map[string]gangstate.Assignment
	missing           planner.Counts     // required members that are neither bound nor assigned
	returningPods     map[string]*v1.Pod // objects of deleted pods in place of those to be recreated
	schedulable       []gangstate.Pod    // pending pods without an assignment, up to the desired number of each role
	excess            []gangstate.Pod    // the other pending pods without an assignment
}

func (s *State) view(key identity.Key) view {
	v := view{key: key}
	v.object = s.object(key)
	v.bound, v.pending, v.assignments = s.gangPods.Members(key)
	if v.object == nil {
		v.schedulable = v.pending
		return v
	}
	v.required, v.desired, v.invalid = v.object.Counts()
	var present planner.Counts
	for _, pod := range v.bound {
		present[rank(pod.Role)]++
	}
	for _, pod := range v.pending {
		if _, assigned := v.assignments[pod.UID]; assigned {
			present[rank(pod.Role)]++
		}
	}
	for i := range v.missing {
		v.missing[i] = max(v.required[i]-present[i], 0)
	}
	for _, pod := range v.pending {
		if _, assigned := v.assignments[pod.UID]; assigned {
			continue
		}
		if i := rank(pod.Role); present[i] < v.desired[i] {
			present[i]++
			v.schedulable = append(v.schedulable, pod)
		} else {
			v.excess = append(v.excess, pod)
		}
	}
	return v
}

func rank(role identity.Role) int {
	rank, _ := role.Rank()
	return rank
}

// uncreated gives the required members that do not exist.
func (v *view) uncreated() planner.Counts {
	uncreated := v.missing
	for _, pod := range v.schedulable {
		if i := rank(pod.Role); uncreated[i] > 0 {
			uncreated[i]--
		}
	}
	return uncreated
}

// isExcess reports whether a pod is one more than the Gang object desires.
func (v *view) isExcess(uid string) bool {
	return slices.ContainsFunc(v.excess, func(p gangstate.Pod) bool { return p.UID == uid })
}

// first is the pod that plans for the gang.
func (v *view) first() gangstate.Pod {
	for _, pod := range v.schedulable {
		if v.missing[rank(pod.Role)] > 0 {
			return pod
		}
	}
	return v.schedulable[0]
}

// gang without nodes, for answers that need none.
func (v *view) gang() *planner.Gang {
	g := &planner.Gang{Key: v.key, Required: v.required, Invalid: v.invalid, Duration: -1}
	add := func(pod gangstate.Pod, to *[]planner.Member, node int) {
		*to = append(*to, planner.Member{Name: pod.Name, Role: pod.Role, Index: pod.Index, Node: node})
	}
	for _, pod := range v.bound {
		add(pod, &g.Bound, 0)
	}
	for _, pod := range v.pending {
		if _, assigned := v.assignments[pod.UID]; assigned {
			add(pod, &g.Members, 0)
		}
	}
	for _, pod := range v.schedulable {
		add(pod, &g.Members, planner.NoNode)
	}
	return g
}

// order of a gang in the queue: the priority of its first pod, then trial-and-error gangs where they may preempt others, then the
// creation of its object.
func (s *State) order(v *view) order.Key {
	key := order.Key{Gang: v.key.String()}
	if len(v.pending) > 0 {
		key.Priority = v.pending[0].Priority
	} else if len(v.bound) > 0 {
		key.Priority = v.bound[0].Priority
	}
	if v.object != nil {
		key.Since = v.object.CreationTimestamp.UnixNano()
		key.BestEffort = s.args.Preemption != preempt.Never && !v.object.Spec.TrialAndError
	}
	return key
}

// record of a gang, created by the first call; the caller holds mu.
func (s *State) record(key identity.Key) *record {
	r := s.records[key]
	if r == nil {
		r = &record{}
		s.records[key] = r
	}
	return r
}

// head is the first gang in queue order, before a place in it, that claims capacity; nil if there is none but the gang itself.
func (s *State) head(except identity.Key, before *order.Key) (identity.Key, *record) {
	now := s.clock.Now()
	s.mu.RLock()
	defer s.mu.RUnlock()
	var key identity.Key
	var first *record
	for k, r := range s.records {
		if !r.claimsCapacity(now) || k == except || (before != nil && !order.Less(&r.order, before)) {
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

// predictedEnds gives in how many seconds each gang that holds capacity is predicted to release it.
func (s *State) predictedEnds() map[identity.Key]float64 {
	now := s.clock.Now()
	s.mu.RLock()
	defer s.mu.RUnlock()
	ends := map[identity.Key]float64{}
	for key, gang := range s.gangs {
		if end, known := gang.EndsIn(now); known {
			ends[key] = end
		}
	}
	return ends
}

func (s *State) backfillSettings(r *record) backfill.Settings {
	return backfill.Settings{Policy: s.args.Backfill, Limits: s.args.Limits(), Bypassed: r.bypassed, Waited: s.clock.Since(r.pendingSince).Seconds()}
}

// preemptedGangs lists the gangs that are being preempted.
func (s *State) preemptedGangs() []identity.Key {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var preempted []identity.Key
	for _, r := range s.records {
		preempted = append(preempted, r.victims...)
	}
	for key, object := range s.gangs {
		if object.Status.Draining != nil {
			preempted = append(preempted, key)
		}
	}
	slices.SortFunc(preempted, identity.Key.Compare)
	return slices.Compact(preempted)
}

// gangPod is what the store keeps of a pod. ok is false for pods of no gang and for pods with an unknown role.
func gangPod(pod *v1.Pod) (result gangstate.Pod, ok bool) {
	member, ours, err := identity.Of(pod.Namespace, pod.Labels)
	if !ours || err != nil {
		return gangstate.Pod{}, false
	}
	index, _ := strconv.Atoi(pod.Labels[identity.IndexLabel]) // without the label it is 0, and names decide
	return gangstate.Pod{UID: string(pod.UID), Name: pod.Name, Gang: member.Gang, Role: member.Role, Index: index,
		Priority: corev1.PodPriority(pod), Node: pod.Spec.NodeName, Deleting: pod.DeletionTimestamp != nil, Requests: snapshot.Requests(pod)}, true
}

// podObjects gives the API objects of pods, without those that no longer exist.
func (s *State) podObjects(pods []gangstate.Pod) map[string]*v1.Pod {
	objects := map[string]*v1.Pod{}
	for _, pod := range pods {
		object, err := s.pods.Pods(pod.Gang.Namespace).Get(pod.Name)
		if err == nil && string(object.UID) == pod.UID {
			objects[pod.Gang.Namespace+"/"+pod.Name] = object
		}
	}
	return objects
}

// returnTime is how long members that are rejected in Permit may take back to the queue. kube-scheduler 1.35.4 can lose a pod that is
// activated on its way there (kubernetes/kubernetes#139186).
const returnTime = 100 * time.Millisecond

// dropPlan of a gang: its capacity is released, its members that wait in Permit are rejected, and it is tried again after a time.
func (s *State) dropPlan(key identity.Key, after time.Duration) {
	reserved, dropped := s.gangPods.DropPlan(key, s.clock.Now())
	for _, uid := range reserved {
		s.handle.RejectWaitingPod(types.UID(uid))
	}
	if dropped > 0 {
		metrics.DroppedPlans.Inc()
		s.requeue.Deferred(0)
	}
	if len(reserved) > 0 {
		after = max(after, returnTime)
	}
	s.requeue.Gang(key, after)
}
