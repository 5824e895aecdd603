package snapshot

import (
	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"coach.dev/scheduler-plugins/pkg/gangstate"
	"coach.dev/scheduler-plugins/pkg/identity"
	"coach.dev/scheduler-plugins/pkg/planner"
)

// Names of the dimensions that every node has. Extended resources come between memory and storage: cpu, memory and devices say
// how large a node is, and the number of pods that it allows does not.
const (
	cpu     = string(v1.ResourceCPU)
	memory  = string(v1.ResourceMemory)
	storage = string(v1.ResourceEphemeralStorage)
	pods    = string(v1.ResourcePods)
)

// Requests of a pod, as the stock NodeResourcesFit plugin computes them.
func Requests(pod *v1.Pod) gangstate.Resources {
	info, err := framework.NewPodInfo(pod)
	if err != nil {
		return gangstate.Resources{pods: 1} // an affinity term that cannot be parsed; the stock plugins refuse the pod
	}
	resources := info.CalculateResource().Resource
	requests := gangstate.Resources{cpu: resources.GetMilliCPU(), memory: resources.GetMemory(), pods: 1}
	if amount := resources.GetEphemeralStorage(); amount > 0 {
		requests[storage] = amount
	}
	for name, amount := range resources.GetScalarResources() {
		requests[string(name)] = amount
	}
	return requests
}

// Free is how much of a resource the pods on a node leave.
func Free(info fwk.NodeInfo, name string) int64 {
	return allocatable(info, name) - requested(info, name)
}

func allocatable(info fwk.NodeInfo, name string) int64 {
	if name == pods {
		return int64(info.GetAllocatable().GetAllowedPodNumber())
	}
	return amountOf(info.GetAllocatable(), name)
}

func requested(info fwk.NodeInfo, name string) int64 {
	if name == pods {
		return int64(len(info.GetPods()))
	}
	return amountOf(info.GetRequested(), name)
}

func amountOf(resources fwk.Resource, name string) int64 {
	switch name {
	case cpu:
		return resources.GetMilliCPU()
	case memory:
		return resources.GetMemory()
	case storage:
		return resources.GetEphemeralStorage()
	}
	return resources.GetScalarResources()[v1.ResourceName(name)]
}

// Preference of a gang for a node, from the pods that the scheduler counts there: bound and assumed ones.
func Preference(info fwk.NodeInfo, gang identity.Key) planner.NodePreference {
	own, others := false, false
	for _, pod := range info.GetPods() {
		member, ours, _ := identity.Of(pod.GetPod().Namespace, pod.GetPod().Labels)
		own = own || (ours && member.Gang == gang)
		others = others || (ours && member.Gang != gang)
	}
	return planner.Preference(own, others)
}
