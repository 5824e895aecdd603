package plugin

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"coach.dev/scheduler-plugins/pkg/backfill"
	"coach.dev/scheduler-plugins/pkg/gangstate"
	"coach.dev/scheduler-plugins/pkg/identity"
	"coach.dev/scheduler-plugins/pkg/order"
	"coach.dev/scheduler-plugins/pkg/reason"
)

// waker brings pods back to the scheduling queue. Informer handlers, hints and plans only say which gang may have become
// schedulable; one goroutine works that off, so nobody calls the queue from inside it, and many calls for one gang are one.
type waker struct {
	state *State
	queue workqueue.TypedDelayingInterface[identity.Key]
	news  atomic.Int64 // how often room came free, or the nodes changed
}

// Keys for news that is about no gang in particular; no namespace is named like this.
var (
	roomCameFree = identity.Key{Job: "room"}
	nodeChanged  = identity.Key{Job: "node"} // even a gang that no node could hold may have a place now
	bindingsDone = identity.Key{Job: "turn"} // the next gang may be planned
	allTried     = identity.Key{Job: "all"}  // no needed member is on its way to a plan
)

func newWaker(s *State) *waker {
	return &waker{state: s, queue: workqueue.NewTypedDelayingQueue[identity.Key]()}
}

func (w *waker) gang(key identity.Key, after time.Duration) { w.queue.AddAfter(key, after) }

// room came free somewhere, or a claim on it ended.
func (w *waker) room() {
	w.news.Add(1)
	w.others()
}

func (w *waker) node() {
	w.news.Add(1)
	w.queue.AddAfter(nodeChanged, burst)
}

// others that wait for room are looked at. Events come in bursts, and one look after the burst is enough.
func (w *waker) others() { w.queue.AddAfter(roomCameFree, burst) }

// turn comes to the next gang when pods are bound or plans are given up.
func (w *waker) turn() { w.queue.AddAfter(bindingsDone, burst) }

// wanted members may be placed.
func (w *waker) wanted() { w.queue.AddAfter(allTried, burst) }

const burst = 10 * time.Millisecond

func (w *waker) run(ctx context.Context) {
	go func() {
		<-ctx.Done()
		w.queue.ShutDown()
	}()
	for {
		key, shutdown := w.queue.Get()
		if shutdown {
			return
		}
		switch key {
		case roomCameFree, nodeChanged:
			for _, waiting := range w.state.waiters(key == nodeChanged) {
				w.activate(ctx, waiting)
			}
		case allTried:
			for _, hungry := range w.state.hungry() {
				w.activate(ctx, hungry)
			}
		case bindingsDone:
			for next, waits := w.state.next(); waits; next, waits = w.state.next() {
				w.activate(ctx, next)
			}
		default:
			w.activate(ctx, key)
		}
		w.queue.Done(key)
	}
}

// activate the pods of a gang that can do something: those with a seat, or the one that plans, or the wanted ones.
func (w *waker) activate(ctx context.Context, key identity.Key) {
	s := w.state
	s.returned(key, false)
	v := s.view(key)
	var candidates []gangstate.Pod
	for _, pod := range v.asking {
		if seat, seated := v.seats[pod.UID]; seated && seat.State == gangstate.Planned {
			candidates = append(candidates, pod)
		}
	}
	if s.profileOf(v.asking) == thesisProfile {
		if candidates = nil; s.typesPresent(identity.Member{Gang: key, Role: v.asking[0].Role}) {
			candidates = v.asking
		}
	} else if v.object != nil && len(v.offered) > 0 {
		if v.missing.Total() > 0 {
			candidates = append(candidates, v.first())
		} else {
			candidates = append(candidates, v.offered...)
		}
	}
	if v.object != nil && v.mistake == "" && v.missing.Total() == 0 {
		s.settled(key, nil) // it may have waited for members that are not needed any more
	}
	s.explainGate(ctx, &v)
	if objects := s.objectsOf(candidates); len(objects) > 0 {
		s.handle.Activate(klog.FromContext(ctx), objects)
	}
}

// profileOf pods: that of the first, since a job's pods name one scheduler.
func (s *State) profileOf(pods []gangstate.Pod) profile {
	if len(pods) == 0 {
		return 0
	}
	object, err := s.pods.Pods(pods[0].Gang.Namespace).Get(pods[0].Name)
	if err != nil {
		return 0
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.profiles[object.Spec.SchedulerName]
}

// waiters are the gangs to wake when room came free, in queue order. Under the strict policy that is the first alone: when it
// has started, or turned out not to wait for room, it wakes the next; so a free core costs one plan and not one for each. hopeless
// adds the gangs that no cluster of these nodes could hold.
func (s *State) waiters(hopeless bool) []identity.Key {
	type waiter struct {
		key   identity.Key
		order order.Key
	}
	var waiting []waiter
	var hungry []identity.Key
	s.mu.RLock()
	for key, r := range s.records {
		if token := r.verdict.Token; token.Claims() || token == reason.ShadowReserved {
			waiting = append(waiting, waiter{key, r.order})
		} else if r.hungry || (hopeless && token == reason.NeverFits) {
			hungry = append(hungry, key)
		}
	}
	s.mu.RUnlock()
	slices.SortFunc(waiting, func(a, b waiter) int {
		if order.Less(&a.order, &b.order) {
			return -1
		}
		return 1
	})
	if s.knobs.Backfill == backfill.Strict && len(waiting) > 1 {
		waiting = waiting[:1]
	}
	keys := make([]identity.Key, 0, len(waiting)+len(hungry))
	for _, w := range waiting {
		keys = append(keys, w.key)
	}
	return append(keys, hungry...)
}

// hungry gangs have wanted members without a place.
func (s *State) hungry() []identity.Key {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var hungry []identity.Key
	for key, r := range s.records {
		if r.hungry && !r.verdict.Token.Claims() {
			hungry = append(hungry, key)
		}
	}
	return hungry
}

// heal looks again at everybody who waits, however it came about that nothing woke them, and drops plans that never came to an
// end. It also forgets the queue keys of pods that are gone; a key outlives its pod by a round, since the queue may hold it longer.
func (s *State) heal(ctx context.Context) {
	every := time.Duration(s.knobs.HealSeconds * float64(time.Second))
	ticker := s.clock.NewTicker(every)
	defer ticker.Stop()
	gone := map[string]bool{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
		}
		for _, key := range s.ledger.Stale(s.clock.Now(), every+2*time.Duration(s.knobs.PermitSeconds*float64(time.Second))) {
			s.drop(ctx, s.handle, key, 0)
		}
		for _, key := range s.ledger.Gangs() {
			s.wake.gang(key, 0)
		}
		s.wake.turn()
		gone = s.sweep(gone)
	}
}

// sweep forgets the keys of pods that were gone in the last round already, and returns those that are gone now.
func (s *State) sweep(before map[string]bool) map[string]bool {
	gone := map[string]bool{}
	s.mu.Lock()
	defer s.mu.Unlock()
	for uid := range s.keys {
		switch {
		case s.ledger.Knows(string(uid)):
		case before[string(uid)]:
			delete(s.keys, uid)
		default:
			gone[string(uid)] = true
		}
	}
	return gone
}

// observe a pod that was added or changed.
func (s *State) observe(ctx context.Context, pod *v1.Pod) {
	s.mu.RLock()
	kind, scheduled := s.profiles[pod.Spec.SchedulerName]
	s.mu.RUnlock()
	entry, ours := podOf(pod)
	if !ours {
		if _, meant, mistake := identity.Of(pod.Namespace, pod.Labels); meant && mistake != nil && kind == coachProfile && pod.Spec.NodeName == "" {
			go s.explainLabels(ctx, pod, mistake)
		}
		return
	}
	if entry.Node == "" && (!scheduled || len(pod.Spec.SchedulingGates) > 0) {
		return // somebody else will place it, or open its gates; until then it is nobody here
	}
	if s.ledger.Observe(entry, s.clock.Now()) { // a change of its status alone, such as our own verdict, is no news
		s.wake.gang(entry.Gang, 0)
		s.wake.turn()
	}
}

// forget a pod that is gone. A plan that counted on it is void.
func (s *State) forget(ctx context.Context, pod *v1.Pod) {
	seat, seated := s.ledger.SeatOf(string(pod.UID))
	entry, ours := s.ledger.Forget(string(pod.UID), s.clock.Now())
	if ours {
		if seated && !seat.Wanted && seat.State != gangstate.Released {
			s.drop(ctx, s.handle, entry.Gang, 0)
		}
		s.clear(entry.Gang)
		s.wake.gang(entry.Gang, 0)
		s.drains.look(entry.Gang, 0)
	}
	if pod.Spec.NodeName != "" || ours {
		s.wake.room()
		s.wake.turn()
	}
}

// clear what is remembered of a gang without pods.
func (s *State) clear(key identity.Key) {
	if bound, asking, _ := s.ledger.Members(key); len(bound)+len(asking) > 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.records[key]; r != nil && r.absent != nil {
		s.records[key] = &record{absent: r.absent, order: r.order, since: r.since}
	} else {
		delete(s.records, key)
	}
	delete(s.since, key)
	s.tried(key)
}
