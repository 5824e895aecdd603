package plugin

import (
	"time"

	v1 "k8s.io/api/core/v1"

	"coach.dev/scheduler-plugins/pkg/gangstate"
	"coach.dev/scheduler-plugins/pkg/identity"
	"coach.dev/scheduler-plugins/pkg/reason"
)

// returningGang is a preempted gang whose pods are deleted and not recreated yet. For a while it keeps its place in the queue, with the
// pods that it had; without that, younger gangs would take the remaining capacity while its controllers recreate the pods. A scheduler
// that restarts in this time does not remember it.
type returningGang struct {
	pods    []gangstate.Pod
	objects map[string]*v1.Pod // by namespace/name
	until   time.Time          // zero: some of the pods still hold their capacity
}

func (r *returningGang) claimsCapacity(now time.Time) bool { return r != nil && now.Before(r.until) }

// claimsCapacity reports whether the gang claims capacity that gangs behind it could use.
func (r *record) claimsCapacity(now time.Time) bool {
	return r.status.Token.ClaimsCapacity() || r.returning.claimsCapacity(now)
}

// keepPlace of a gang whose pods are about to be deleted.
func (s *State) keepPlace(key identity.Key, bound []gangstate.Pod, objects map[string]*v1.Pod) {
	if s.args.ReturnSeconds == 0 || len(bound) == 0 {
		return
	}
	v := s.view(key)
	at := s.order(&v)
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.record(key); r.returning == nil { // else this is a retry, and some pods are gone
		r.returning, r.order = &returningGang{pods: bound, objects: objects}, at
	}
}

// startReturn begins the time in which a gang may come back: its last pod is gone.
func (s *State) startReturn(key identity.Key) {
	limit := time.Duration(s.args.ReturnSeconds * float64(time.Second))
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.records[key]; r != nil && r.returning != nil && r.returning.until.IsZero() {
		r.pendingSince = s.clock.Now()
		r.returning.until = r.pendingSince.Add(limit)
		s.requeue.Gang(key, limit)
	}
}

// endReturn of a gang whose time is over, or, with force, of any; gangs that waited for it are tried again.
func (s *State) endReturn(key identity.Key, force bool) {
	now := s.clock.Now()
	s.mu.Lock()
	r := s.records[key]
	over := r != nil && r.returning != nil && (force || (!r.returning.until.IsZero() && !r.returning.claimsCapacity(now)))
	if over {
		r.returning = nil
	} else if r != nil && r.returning.claimsCapacity(now) {
		s.requeue.Gang(key, r.returning.until.Sub(now)) // of two times for one gang the queue keeps the earlier
	}
	s.mu.Unlock()
	if over {
		s.forgetGang(key)
		s.requeue.CapacityFreed()
	}
}

// addReturning adds to a view the deleted pods that the gang requires and has not recreated yet.
func (v *view) addReturning(returning *returningGang) {
	exists := map[string]bool{}
	for _, list := range [][]gangstate.Pod{v.bound, v.pending} {
		for _, pod := range list {
			exists[pod.Name] = true
		}
	}
	uncreated := v.uncreated()
	for _, pod := range returning.pods {
		if i := rank(pod.Role); uncreated[i] > 0 && !exists[pod.Name] {
			uncreated[i]--
			pod.Node = ""
			v.pending, v.schedulable = append(v.pending, pod), append(v.schedulable, pod)
		}
	}
	v.returningPods = returning.objects
}

// returningReason is why a gang that keeps its place waits.
func (v *view) returningReason() reason.Reason {
	return reason.Reason{Token: reason.WaitingMembers, Missing: v.missing.Short(), Text: "was preempted, waits for its pods"}
}
