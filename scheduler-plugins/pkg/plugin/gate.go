package plugin

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/component-helpers/scheduling/corev1"
	fwk "k8s.io/kube-scheduler/framework"

	"coach.dev/scheduler-plugins/pkg/identity"
	"coach.dev/scheduler-plugins/pkg/planner"
	"coach.dev/scheduler-plugins/pkg/reason"
)

// GateName is the plugin that holds pods of the coach profile before the queue.
const GateName = "CoachGate"

// Gate holds members of a gang before the queue until they can be planned. It is a plugin of its own because it registers no events:
// the scheduler offers each held pod every event that the plugin which holds it registers, and with thousands of held pods and
// nodes, at the start above all, that takes minutes. The requeue queue activates the pods instead.
type Gate struct{ state *State }

var (
	_ fwk.PreEnqueuePlugin  = &Gate{}
	_ fwk.EnqueueExtensions = &Gate{}
)

// newGate is the factory of CoachGate.
func (s *State) newGate(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) {
	s.hasGate.Store(true)
	return &Gate{state: s}, nil
}

// Name of the plugin.
func (g *Gate) Name() string { return GateName }

// EventsToRegister is empty; see Gate.
func (g *Gate) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) { return nil, nil }

// PreEnqueue holds a member until the required members exist, and then all but the one that plans for the gang.
func (g *Gate) PreEnqueue(_ context.Context, pod *v1.Pod) *fwk.Status {
	member, ours, err := identity.Of(pod.Namespace, pod.Labels)
	if !ours {
		return nil
	}
	if err != nil {
		return reject(reason.Reason{Token: reason.Misconfigured, Text: err.Error()})
	}
	if !g.state.synced.Load() {
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, reason.Starting)
	}
	v := g.state.view(member.Gang)
	if why := g.state.holdReason(&v, string(pod.UID)); why != nil {
		return reject(*why)
	}
	key := g.state.order(&v)
	key.Priority, key.BestEffort, key.Name = corev1.PodPriority(pod), false, pod.Name // pods of no gang are in the same queue
	g.state.queue.SetKey(pod, key)
	return nil
}

// holdReason gives the reason to hold one pod before the queue, or nil. Of a gang that needs nodes only its first required pod is let
// in: it plans for all, so a gang that cannot start costs one pod's scheduling cycle, and the others follow when it has a plan.
func (s *State) holdReason(v *view, uid string) *reason.Reason {
	if _, assigned := v.assignments[uid]; assigned {
		return nil
	}
	if v.object == nil || v.object.Status.Draining != nil || v.invalid != "" || v.uncreated().Total() > 0 || v.missing.Total() == 0 {
		s.limiter.Done(v.key)
	}
	hold := func(token reason.Token, text string) *reason.Reason { return &reason.Reason{Token: token, Text: text} }
	switch {
	case v.object == nil:
		return hold(reason.WaitingMembers, "Gang object "+v.key.String()+" is not created")
	case v.object.Status.Draining != nil:
		return hold(reason.Draining, "is preempted by gang "+v.object.Status.Draining.By+", and is planned again when its pods are gone")
	case v.invalid != "":
		return hold(reason.Misconfigured, v.invalid)
	case v.isExcess(uid):
		return hold(reason.Misconfigured, excessPod)
	case v.uncreated().Total() > 0:
		return planner.PlanRequired(planner.NewSnapshot(nil, nil, nil, 0), v.gang(), nil).Pending
	case v.missing.Total() == 0:
		if s.limiter.Others(v.key) {
			s.mu.Lock()
			s.record(v.key).lacksOptional = true
			s.mu.Unlock()
			return hold(reason.ShadowReserved, "optional member, but other gangs still wait for required members")
		}
		return nil
	case v.first().UID != uid:
		return hold(reason.Placing, "waits for "+v.first().Name+", which plans for the gang")
	case !s.limiter.Admit(v.key, s.order(v), v.missing.Total()):
		return hold(reason.Placing, "is planned when enough of the bindings in progress are done")
	}
	return nil
}

// excessPod is why a pod is held that the Gang object does not ask for.
const excessPod = "more pods of this role than the Gang object desires"
