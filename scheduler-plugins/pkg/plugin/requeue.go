package plugin

import (
	"context"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"coach.dev/scheduler-plugins/pkg/backfill"
	"coach.dev/scheduler-plugins/pkg/gangstate"
	"coach.dev/scheduler-plugins/pkg/identity"
	"coach.dev/scheduler-plugins/pkg/order"
	"coach.dev/scheduler-plugins/pkg/plugin/requeue"
	"coach.dev/scheduler-plugins/pkg/reason"
)

var _ requeue.Handler = &State{}

// Activate the pods of a gang that can proceed: those with an assignment, or the one that plans, or the optional ones.
func (s *State) Activate(ctx context.Context, key identity.Key) {
	s.endReturn(key, false)
	s.releaseKept(key)
	v := s.view(key)
	var candidates []gangstate.Pod
	for _, pod := range v.pending {
		if assignment, assigned := v.assignments[pod.UID]; assigned && assignment.Phase == gangstate.Planned {
			candidates = append(candidates, pod)
		}
	}
	if s.profileOf(v.pending) == thesisProfile {
		if candidates = nil; s.thesis.AllTypesPresent(identity.Member{Gang: key, Role: v.pending[0].Role}) {
			candidates = v.pending
		}
	} else if v.object != nil && len(v.schedulable) > 0 {
		if v.missing.Total() > 0 {
			candidates = append(candidates, v.first())
		} else {
			candidates = append(candidates, v.schedulable...)
		}
	}
	if v.object != nil && v.invalid == "" && v.missing.Total() == 0 {
		s.clearPending(key, nil) // it may have waited for members that are not required any more
	}
	s.reportHeld(ctx, &v)
	if objects := s.podObjects(candidates); len(objects) > 0 {
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

// PendingGangs gives the gangs to try again when capacity was freed, in queue order. Under the strict policy that is the first alone:
// when it has started, or does not wait for capacity, the next one is tried; so freed capacity costs one plan and not one for
// each gang. withNeverFits adds the gangs that no cluster of these nodes could hold.
func (s *State) PendingGangs(withNeverFits bool) []identity.Key {
	type waiter struct {
		key   identity.Key
		order order.Key
	}
	var waiting []waiter
	var others []identity.Key
	s.mu.RLock()
	for key, r := range s.records {
		if token := r.status.Token; s.kept[key] != nil {
			others = append(others, key) // it waits behind no other
		} else if token.ClaimsCapacity() || token == reason.ShadowReserved {
			waiting = append(waiting, waiter{key, r.order})
		} else if r.lacksOptional || (withNeverFits && token == reason.NeverFits) {
			others = append(others, key)
		}
	}
	s.mu.RUnlock()
	slices.SortFunc(waiting, func(a, b waiter) int {
		if order.Less(&a.order, &b.order) {
			return -1
		}
		return 1
	})
	if s.args.Backfill == backfill.Strict && len(waiting) > 1 {
		waiting = waiting[:1]
	}
	keys := make([]identity.Key, 0, len(waiting)+len(others))
	for _, w := range waiting {
		keys = append(keys, w.key)
	}
	return append(keys, others...)
}

// GangsLackingOptional gives the gangs that have optional members without a node and wait for nothing else.
func (s *State) GangsLackingOptional() []identity.Key {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var gangs []identity.Key
	for key, r := range s.records {
		if r.lacksOptional && !r.status.Token.ClaimsCapacity() {
			gangs = append(gangs, key)
		}
	}
	return gangs
}

// NextDeferred is the next gang that backpressure lets through.
func (s *State) NextDeferred() (identity.Key, bool) { return s.limiter.Next() }

// resync tries all pending gangs again from time to time, in case an event was missed, and drops plans that never ended.
func (s *State) resync(ctx context.Context) {
	period := time.Duration(s.args.ResyncSeconds * float64(time.Second))
	ticker := s.clock.NewTicker(period)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
		}
		for _, key := range s.gangPods.StalePlans(s.clock.Now(), period+2*time.Duration(s.args.PermitSeconds*float64(time.Second))) {
			s.dropPlan(key, 0)
		}
		for _, key := range s.gangPods.Gangs() {
			s.requeue.Gang(key, 0)
		}
		s.requeue.Deferred(0)
		s.queue.Prune(s.gangPods.Has)
	}
}

// podChanged handles a pod that was added or changed.
func (s *State) podChanged(ctx context.Context, object *v1.Pod) {
	s.mu.RLock()
	kind, scheduled := s.profiles[object.Spec.SchedulerName]
	s.mu.RUnlock()
	pod, ours := gangPod(object)
	if !ours {
		if _, labelled, err := identity.Of(object.Namespace, object.Labels); labelled && err != nil && kind == coachProfile && object.Spec.NodeName == "" {
			go s.reportInvalidLabels(ctx, object, err)
		}
		return
	}
	if pod.Node == "" && (!scheduled || len(object.Spec.SchedulingGates) > 0) {
		return // for another scheduler, or behind a scheduling gate: no member until it is bound or the gate is removed
	}
	if s.gangPods.Update(pod, s.clock.Now()) { // not if only its status changed, as by this scheduler's own conditions
		s.requeue.Gang(pod.Gang, 0)
		s.requeue.Deferred(0)
	}
}

// podDeleted handles a pod that is gone. A plan that counted on it is dropped.
func (s *State) podDeleted(object *v1.Pod) {
	assignment, assigned := s.gangPods.AssignmentOf(string(object.UID))
	if pod, known := s.gangPods.Pod(string(object.UID)); known {
		pod.Deleting = true
		s.gangPods.Update(pod, s.clock.Now())
		s.keepRoom(pod)
	}
	pod, ours := s.gangPods.Delete(string(object.UID), s.clock.Now())
	if ours {
		if assigned && !assignment.Optional && assignment.Phase != gangstate.Permitted {
			s.dropPlan(pod.Gang, 0)
		}
		s.forgetGang(pod.Gang)
		s.requeue.Gang(pod.Gang, 0)
		s.preemption.queue.AddAfter(pod.Gang, 0)
	}
	if object.Spec.NodeName != "" || ours {
		s.requeue.CapacityFreed()
		s.requeue.Deferred(0)
	}
}

// forgetGang deletes the record of a gang without pods.
func (s *State) forgetGang(key identity.Key) {
	if bound, pending, _ := s.gangPods.Members(key); len(bound)+len(pending) > 0 {
		return
	}
	s.mu.Lock()
	if r := s.records[key]; r != nil && r.returning != nil {
		s.records[key] = &record{returning: r.returning, order: r.order, pendingSince: r.pendingSince}
	} else {
		delete(s.records, key)
	}
	s.mu.Unlock()
	s.thesis.Forget(key)
	s.limiter.Done(key)
}
