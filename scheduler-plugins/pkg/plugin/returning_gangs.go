package plugin

import (
	"time"

	v1 "k8s.io/api/core/v1"

	"coach.dev/scheduler-plugins/pkg/gangstate"
	"coach.dev/scheduler-plugins/pkg/identity"
	"coach.dev/scheduler-plugins/pkg/order"
	"coach.dev/scheduler-plugins/pkg/reason"
)

// absence of a preempted gang: its pods are deleted, and its functions have not made them again. For a while it keeps its place in the
// queue, by the pods that it had, or whoever came later would take the room that is left while its controllers are at work.
// A scheduler that starts again in this time does not remember it.
type absence struct {
	pods    []gangstate.Pod
	objects map[string]*v1.Pod // by namespace/name
	until   time.Time          // zero: some of the pods still hold their room
}

func (a *absence) claims(now time.Time) bool { return a != nil && now.Before(a.until) }

// remember the members of a gang whose pods are about to be deleted.
func (s *State) remember(key identity.Key, bound []gangstate.Pod, objects map[string]*v1.Pod) {
	if s.knobs.ReturnSeconds == 0 || len(bound) == 0 {
		return
	}
	v := s.view(key)
	at := s.order(&v)
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.record(key); r.absent == nil { // else this is the second try, and some are gone
		r.absent, r.order = &absence{pods: bound, objects: objects}, at
	}
}

// left begins the time in which a gang may come back: its last pod is gone.
func (s *State) left(key identity.Key) {
	limit := time.Duration(s.knobs.ReturnSeconds * float64(time.Second))
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.records[key]; r != nil && r.absent != nil && r.absent.until.IsZero() {
		r.since = s.clock.Now()
		r.absent.until = r.since.Add(limit)
		s.wake.gang(key, limit)
	}
}

// returned ends an absence whose time is over, or in any case; those that it kept waiting are looked at.
func (s *State) returned(key identity.Key, anyhow bool) {
	now := s.clock.Now()
	s.mu.Lock()
	r := s.records[key]
	over := r != nil && r.absent != nil && (anyhow || (!r.absent.until.IsZero() && !r.absent.claims(now)))
	if over {
		r.absent = nil
	} else if r != nil && r.absent.claims(now) {
		s.wake.gang(key, r.absent.until.Sub(now)) // of two calls to wake one gang later the queue keeps the earlier
	}
	s.mu.Unlock()
	if over {
		s.clear(key)
		s.wake.room()
	}
}

// recall adds to the view of an absent gang the pods that it needs and has not made again, as they were.
func (v *view) recall(a *absence) {
	there := map[string]bool{}
	for _, list := range [][]gangstate.Pod{v.bound, v.asking} {
		for _, pod := range list {
			there[pod.Name] = true
		}
	}
	lacking := v.lacking()
	for _, pod := range a.pods {
		if i := rank(pod.Role); lacking[i] > 0 && !there[pod.Name] {
			lacking[i]--
			pod.Node = ""
			v.asking, v.offered = append(v.asking, pod), append(v.offered, pod)
		}
	}
	v.recalled = a.objects
}

// awaited is the wait of a gang that keeps its place although its pods are not there.
func (v *view) awaited() reason.Reason {
	return reason.Reason{Token: reason.WaitingMembers, Missing: v.missing.Short(), Text: "was preempted, waits for its pods"}
}

// claim gives the place in the queue of a gang that has a claim on room that those behind it could take.
func (r *record) claim(now time.Time) (order.Key, bool) {
	return r.order, r.verdict.Token.Claims() || r.absent.claims(now)
}
