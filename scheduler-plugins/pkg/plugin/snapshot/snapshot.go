// Package snapshot translates between kube-scheduler's view of the nodes and the planner's: NodeInfo and pods become vectors of whole
// numbers in one order of dimensions, minus the capacity that plans reserve.
package snapshot

import (
	"fmt"
	"math"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"coach.dev/scheduler-plugins/pkg/gangstate"
	"coach.dev/scheduler-plugins/pkg/identity"
	"coach.dev/scheduler-plugins/pkg/planner"
)

// Cluster is the planner's snapshot, with the nodes and dimensions that it was made from.
type Cluster struct {
	*planner.Snapshot
	dimensions []string
	infos      []fwk.NodeInfo // in the order of Names
}

// Take a snapshot of the nodes of a scheduling cycle, without the capacity that plans reserve.
func (c *NodeCache) Take(nodes []fwk.NodeInfo, gangPods *gangstate.Store) *Cluster {
	c.update(nodes, gangPods)
	r := &Cluster{infos: c.infos, dimensions: c.dimensions}
	free := c.vectors()
	for _, node := range gangPods.NodesWithPlans() {
		if i, found := slices.BinarySearch(c.names, node); found {
			for d, amount := range r.Vector(gangPods.PlannedRequests(node, identity.Key{}, math.MinInt32)) {
				free[i][d] -= amount
			}
		}
	}
	r.Snapshot = planner.NewSnapshot(c.names, c.capacity, free, len(c.dimensions)-2)
	r.Format, r.Devices = r.format, deviceNames(c.dimensions)
	r.Jobs = gangPods.GangsOn(c.names)
	r.OtherPods = make([]int, len(c.infos))
	for i, info := range c.infos {
		r.OtherPods[i] = len(info.GetPods())
		for _, members := range r.Jobs[i] {
			r.OtherPods[i] = max(r.OtherPods[i]-members, 0)
		}
	}
	r.UsageOf = func(gang identity.Key) []planner.Usage {
		var usages []planner.Usage
		for node, requests := range gangPods.RequestsOf(gang) {
			if i, found := r.Node(node); found {
				for _, request := range requests {
					usages = append(usages, planner.Usage{Node: i, Request: r.Vector(request)})
				}
			}
		}
		return usages
	}
	return r
}

// Node gives the index of a node.
func (c *Cluster) Node(name string) (int, bool) { return slices.BinarySearch(c.Names, name) }

// Vector of resources. A resource that no node has makes the request unsatisfiable: it is added to the pods dimension, beyond any node.
func (c *Cluster) Vector(resources gangstate.Resources) []int64 {
	vector := make([]int64, len(c.dimensions))
	for name, value := range resources {
		if d := slices.Index(c.dimensions, name); d >= 0 {
			vector[d] = value
		} else if value > 0 {
			vector[len(vector)-1] = 1 << 40
		}
	}
	return vector
}

// deviceNames of the dimensions that are extended resources: Kubernetes has no slash in the names of its own.
func deviceNames(dimensions []string) []string {
	names := make([]string, len(dimensions))
	for d, name := range dimensions {
		if _, device, found := strings.Cut(name, "/"); found && device == "gpu" {
			names[d] = "GPU"
		} else if found {
			names[d] = name
		}
	}
	return names
}

func (c *Cluster) format(amount []int64) string {
	var parts []string
	for d, name := range c.dimensions {
		if d >= len(amount) || amount[d] == 0 || name == pods {
			continue
		}
		switch name {
		case cpu:
			parts = append(parts, fmt.Sprintf("%.10g cpu", float64(amount[d])/1000))
		case memory, storage:
			parts = append(parts, resource.NewQuantity(amount[d], resource.BinarySI).String()+" "+name)
		default:
			parts = append(parts, fmt.Sprintf("%d %s", amount[d], name))
		}
	}
	if len(parts) == 0 {
		return "nothing"
	}
	return strings.Join(parts, " ")
}

// Eligible gives the nodes that a pod may use by its spec and the nodes' own: selectors, taints, cordons. Filters that know more
// (volumes, ports, claims, affinity to other pods) run when the pod comes to its planned node; if one rejects the node, the gang is
// planned again with no more of its members there than it took. nil: all nodes.
func (c *Cluster) Eligible(pod *v1.Pod) []bool {
	affinity := nodeaffinity.GetRequiredNodeAffinity(pod)
	unconstrained := len(pod.Spec.NodeSelector) == 0 && pod.Spec.Affinity == nil && pod.Spec.NodeName == ""
	mask := make([]bool, len(c.infos))
	all := true
	for i, info := range c.infos {
		node := info.Node()
		mask[i] = true
		if node.Spec.Unschedulable || len(node.Spec.Taints) > 0 {
			_, taint := corev1.FindMatchingUntoleratedTaint(klog.Background(), node.Spec.Taints, pod.Spec.Tolerations, func(t *v1.Taint) bool {
				return t.Effect == v1.TaintEffectNoSchedule || t.Effect == v1.TaintEffectNoExecute
			}, false)
			cordoned := node.Spec.Unschedulable && !corev1.TolerationsTolerateTaint(klog.Background(), pod.Spec.Tolerations,
				&v1.Taint{Key: v1.TaintNodeUnschedulable, Effect: v1.TaintEffectNoSchedule}, false)
			mask[i] = !taint && !cordoned
		}
		if !unconstrained && mask[i] {
			matches, err := affinity.Match(node)
			mask[i] = err == nil && matches
		}
		all = all && mask[i]
	}
	if all {
		return nil
	}
	return mask
}
