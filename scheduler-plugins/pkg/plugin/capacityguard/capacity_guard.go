package plugin

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	fwk "k8s.io/kube-scheduler/framework"

	"coach.dev/scheduler-plugins/pkg/identity"
)

// RoomName is the plugin for the other profiles of the same scheduler.
const RoomName = "CoachRoom"

// Room makes the other profiles of a scheduler respect the plans of its coach profile, for the milliseconds for which a plan keeps
// room. It does nothing else: their pods are scheduled as if the other plugins were not there.
type Room struct{ state *State }

var (
	_ fwk.FilterPlugin      = &Room{}
	_ fwk.EnqueueExtensions = &Room{}
	_ fwk.SignPlugin        = &Room{}
)

// NewRoom makes the factory of the plugin.
func (s *State) NewRoom(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) {
	return &Room{state: s}, nil
}

// Name of the plugin.
func (r *Room) Name() string { return RoomName }

// EventsToRegister: kept room ends as a bound pod of the gang, or by a pod that is called back, which counts as deleted.
func (r *Room) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{{Event: fwk.ClusterEvent{Resource: fwk.Pod, ActionType: fwk.Add | fwk.Delete}}}, nil
}

// Filter keeps the room of plans.
func (r *Room) Filter(_ context.Context, _ fwk.CycleState, pod *v1.Pod, info fwk.NodeInfo) *fwk.Status {
	return r.state.keepRoom(pod, info)
}

// SignPod lets the scheduler batch pods while no plan keeps room from them.
func (r *Room) SignPod(context.Context, *v1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	if r.state.ledger.KeepsAny() {
		return nil, fwk.NewStatus(fwk.Unschedulable, "a gang is being placed")
	}
	return nil, nil
}

// keepRoom of plans from a pod that is not of the gang: as for the scheduler's nominated pods, from those of the same priority and
// below. For a pod with a seat it has nothing to say of its own gang.
func (s *State) keepRoom(pod *v1.Pod, info fwk.NodeInfo) *fwk.Status {
	if !s.ledger.KeepsAny() {
		return nil
	}
	member, _, _ := identity.Of(pod.Namespace, pod.Labels)
	kept := s.ledger.Kept(info.Node().Name, member.Gang, priority(pod))
	if kept == nil {
		return nil
	}
	request := requestOf(pod)
	for name, amount := range kept {
		if need := request[name]; need > 0 && freeOf(info, name)-amount < need {
			return fwk.NewStatus(fwk.Unschedulable, fmt.Sprintf("room kept for a gang that is being placed: %d %s", amount, name))
		}
	}
	return nil
}

func freeOf(info fwk.NodeInfo, name string) int64 {
	whole, used := info.GetAllocatable(), info.GetRequested()
	switch name {
	case cpu:
		return whole.GetMilliCPU() - used.GetMilliCPU()
	case memory:
		return whole.GetMemory() - used.GetMemory()
	case storage:
		return whole.GetEphemeralStorage() - used.GetEphemeralStorage()
	case pods:
		return int64(whole.GetAllowedPodNumber() - len(info.GetPods()))
	}
	return whole.GetScalarResources()[v1.ResourceName(name)] - used.GetScalarResources()[v1.ResourceName(name)]
}
