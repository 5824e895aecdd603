// Package capacityguard keeps pods off capacity that a plan reserves for a gang.
package capacityguard

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/scheduling/corev1"
	fwk "k8s.io/kube-scheduler/framework"

	"coach.dev/scheduler-plugins/pkg/gangstate"
	"coach.dev/scheduler-plugins/pkg/identity"
	"coach.dev/scheduler-plugins/pkg/plugin/snapshot"
)

// Name of the plugin, which is for profiles without gangs: the plugin of the coach profile filters by the same rule.
const Name = "CoachCapacityGuard"

// Plugin makes the other profiles of a scheduler respect the plans of its coach profile, for the milliseconds for which a plan reserves
// capacity. It does nothing else: their pods are scheduled as if Coach's plugins were not there.
type Plugin struct{ gangPods *gangstate.Store }

var (
	_ fwk.FilterPlugin      = &Plugin{}
	_ fwk.EnqueueExtensions = &Plugin{}
	_ fwk.SignPlugin        = &Plugin{}
)

// New guard of the plans in a store.
func New(gangPods *gangstate.Store) *Plugin { return &Plugin{gangPods} }

// Name of the plugin.
func (p *Plugin) Name() string { return Name }

// EventsToRegister: a reservation ends when the gang's pod is bound, or when its plan is dropped, which counts as a deleted pod.
func (p *Plugin) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{{Event: fwk.ClusterEvent{Resource: fwk.Pod, ActionType: fwk.Add | fwk.Delete}}}, nil
}

// Filter rejects a node whose free capacity is reserved for another gang. As for the scheduler's nominated pods, a plan of lower
// priority than the pod does not count.
func (p *Plugin) Filter(_ context.Context, _ fwk.CycleState, pod *v1.Pod, info fwk.NodeInfo) *fwk.Status {
	if !p.gangPods.ReservesCapacity() {
		return nil
	}
	member, _, _ := identity.Of(pod.Namespace, pod.Labels)
	reserved := p.gangPods.PlannedRequests(info.Node().Name, member.Gang, corev1.PodPriority(pod))
	if reserved == nil {
		return nil
	}
	requests := snapshot.Requests(pod)
	for name, amount := range reserved {
		if request := requests[name]; request > 0 && snapshot.Free(info, name)-amount < request {
			return fwk.NewStatus(fwk.Unschedulable, fmt.Sprintf("capacity reserved for a gang that is being placed: %d %s", amount, name))
		}
	}
	return nil
}

// SignPod lets the scheduler batch pods while no plan reserves capacity.
func (p *Plugin) SignPod(context.Context, *v1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	if p.gangPods.ReservesCapacity() {
		return nil, fwk.NewStatus(fwk.Unschedulable, "a gang is being placed")
	}
	return nil, nil
}
