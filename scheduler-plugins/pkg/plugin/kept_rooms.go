package plugin

import (
	"time"

	"coach.dev/scheduler-plugins/pkg/gangstate"
	"coach.dev/scheduler-plugins/pkg/identity"
	"coach.dev/scheduler-plugins/pkg/plugin/snapshot"
)

// keptRoom is what required members held that a running gang has lost. No other gang is planned there for a while: the rest of the gang
// waits for the new members and would hold its own room for nothing. A scheduler that restarts in this time does not remember it.
type keptRoom struct {
	pods  []gangstate.Pod
	until time.Time
}

// keepRoom of a member that is gone, if it was required and others of its gang run on. The store still has it as one that is being
// deleted: a plan that is made meanwhile finds the room held by the one or by the other.
func (s *State) keepRoom(lost gangstate.Pod) {
	v := s.view(lost.Gang)
	if s.args.KeepSeconds == 0 || lost.Node == "" || v.over() {
		return
	}
	limit := time.Duration(s.args.KeepSeconds * float64(time.Second))
	s.mu.Lock()
	defer s.mu.Unlock()
	kept := s.kept[lost.Gang]
	if kept == nil {
		kept = &keptRoom{}
	}
	of := 0
	for _, pod := range kept.pods {
		if pod.Role == lost.Role {
			of++
		}
	}
	if v.missing[rank(lost.Role)] <= of {
		return // it was optional
	}
	kept.pods, kept.until = append(kept.pods, lost), s.clock.Now().Add(limit)
	s.kept[lost.Gang] = kept
	s.requeue.Gang(lost.Gang, limit)
}

// over reports whether a gang has no use for the room of lost members: it is complete, or does not run.
func (v *view) over() bool {
	return v.object == nil || v.object.Status.Draining != nil || v.invalid != "" || len(v.bound) == 0 || v.missing.Total() == 0
}

// releaseKept room that is not needed any more, or was kept long enough; gangs that wait for it are tried again.
func (s *State) releaseKept(key identity.Key) {
	if !s.keepsRoom(key) {
		return
	}
	v := s.view(key)
	s.mu.Lock()
	kept := s.kept[key]
	left := time.Duration(0)
	if kept != nil && !v.over() {
		left = kept.until.Sub(s.clock.Now())
	}
	if left > 0 {
		s.requeue.Gang(key, left) // of two times for one gang the queue keeps the earlier
	} else {
		delete(s.kept, key)
	}
	s.mu.Unlock()
	if left <= 0 {
		s.requeue.CapacityFreed()
	}
}

func (s *State) keepsRoom(key identity.Key) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.kept[key] != nil
}

// withKept counts the room that other gangs keep as theirs.
func (s *State) withKept(cluster *snapshot.Cluster, except identity.Key) *snapshot.Cluster {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for key, kept := range s.kept {
		for _, pod := range kept.pods {
			if node, found := cluster.Node(pod.Node); found && key != except {
				cluster.Allocate(node, cluster.Vector(pod.Requests), key)
			}
		}
	}
	return cluster
}
