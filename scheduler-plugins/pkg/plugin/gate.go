package plugin

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	fwk "k8s.io/kube-scheduler/framework"

	"coach.dev/scheduler-plugins/pkg/identity"
	"coach.dev/scheduler-plugins/pkg/reason"
)

// GateName is the plugin that holds pods of the coach profile before the queue.
const GateName = "CoachGate"

// Gate holds members of a gang before the queue until it is their turn. It is a plugin of its own because of what it registers: nothing.
// The scheduler asks every held pod about every event in which the plugin that holds it has an interest, and with thousands of
// held pods and nodes, at the start above all, that takes minutes. What ends a hold is told by the waker instead.
type Gate struct{ state *State }

var (
	_ fwk.PreEnqueuePlugin  = &Gate{}
	_ fwk.EnqueueExtensions = &Gate{}
)

// NewGate makes the factory of the plugin.
func (s *State) NewGate(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) {
	s.gated.Store(true)
	return &Gate{state: s}, nil
}

// Name of the plugin.
func (g *Gate) Name() string { return GateName }

// EventsToRegister is empty; see Gate.
func (g *Gate) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) { return nil, nil }

// PreEnqueue holds a member back until the needed members are there, and then all but the one that plans for the gang.
func (g *Gate) PreEnqueue(_ context.Context, pod *v1.Pod) *fwk.Status {
	member, ours, err := identity.Of(pod.Namespace, pod.Labels)
	if !ours {
		return nil
	}
	if err != nil {
		return reject(reason.Reason{Token: reason.Misconfigured, Text: err.Error()})
	}
	if !g.state.ready.Load() {
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, starting)
	}
	v := g.state.view(member.Gang)
	if why := g.state.gate(&v, string(pod.UID)); why != nil {
		return reject(*why)
	}
	key := g.state.order(&v)
	key.Priority, key.BestEffort, key.Name = priority(pod), false, pod.Name // pods that are not ours stand in the same queue
	g.state.freeze(pod, key)
	return nil
}
