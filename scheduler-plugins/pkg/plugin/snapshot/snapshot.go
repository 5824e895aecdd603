package plugin

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"coach.dev/scheduler-plugins/pkg/gangstate"
	"coach.dev/scheduler-plugins/pkg/identity"
	"coach.dev/scheduler-plugins/pkg/planner"
)

// Names of the dimensions that every node has. Extended resources stand between memory and these two, since cpu, memory and
// devices say how large a node is, and the number of pods it allows does not.
const (
	cpu     = string(v1.ResourceCPU)
	memory  = string(v1.ResourceMemory)
	storage = string(v1.ResourceEphemeralStorage)
	pods    = string(v1.ResourcePods)
)

// requestOf a pod, as the scheduler's own node resources plugin counts it.
func requestOf(pod *v1.Pod) gangstate.Amount {
	info, err := framework.NewPodInfo(pod)
	if err != nil {
		return gangstate.Amount{pods: 1} // an affinity term that cannot be parsed; the stock plugins refuse the pod
	}
	resources := info.CalculateResource().Resource
	request := gangstate.Amount{cpu: resources.GetMilliCPU(), memory: resources.GetMemory(), pods: 1}
	if amount := resources.GetEphemeralStorage(); amount > 0 {
		request[storage] = amount
	}
	for name, amount := range resources.GetScalarResources() {
		request[string(name)] = amount
	}
	return request
}

// room is the planner's picture of the cluster, with the names to translate by.
type room struct {
	*planner.Snapshot
	dimensions []string
	infos      []fwk.NodeInfo // in the order of Names
}

// snapshot turns the scheduler's own snapshot into the planner's, with the room that plans keep taken away.
func (s *State) snapshot(nodes []fwk.NodeInfo) *room {
	p := s.picture.of(nodes)
	r := &room{infos: p.infos, dimensions: p.dimensions}
	names, capacity, free := p.names, p.capacity, p.vectors()
	width := len(p.dimensions)
	for _, node := range s.ledger.Keeping() {
		if i, there := slices.BinarySearch(names, node); there {
			for d, amount := range r.vector(s.ledger.Kept(node, identity.Key{}, lowest)) {
				free[i][d] -= amount
			}
		}
	}
	r.Snapshot = planner.NewSnapshot(names, capacity, free, width-2)
	r.Words = r.words
	r.Jobs = s.ledger.Jobs(names)
	r.Strangers = make([]int, len(p.infos))
	for i, info := range p.infos {
		r.Strangers[i] = len(info.GetPods())
		for _, members := range r.Jobs[i] {
			r.Strangers[i] = max(r.Strangers[i]-members, 0)
		}
	}
	r.Holds = func(gang identity.Key) []planner.Hold {
		var holds []planner.Hold
		for node, amounts := range s.ledger.Holding(gang) {
			if i, there := slices.BinarySearch(names, node); there {
				for _, amount := range amounts {
					holds = append(holds, planner.Hold{Node: i, Request: r.vector(amount)})
				}
			}
		}
		return holds
	}
	return r
}

const lowest = -1 << 31

// vector of an amount. What no node has at all makes the request unfulfillable: it goes to the pods dimension, above any node.
func (r *room) vector(amount gangstate.Amount) []int64 {
	vector := make([]int64, len(r.dimensions))
	for name, value := range amount {
		if d := slices.Index(r.dimensions, name); d >= 0 {
			vector[d] = value
		} else if value > 0 {
			vector[len(vector)-1] = 1 << 40
		}
	}
	return vector
}

func (r *room) words(amount []int64) string {
	var parts []string
	for d, name := range r.dimensions {
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

// gang of a view, on the nodes of this room.
func (s *State) gang(v *view, r *room) *planner.Gang {
	g := v.gang()
	g.Order = s.order(v)
	if v.object != nil {
		g.Length = v.object.Length()
	}
	var settled []planner.Member
	for i, pod := range v.bound {
		if node, there := slices.BinarySearch(r.Names, pod.Node); there {
			g.Settled[i].Node, g.Settled[i].Request = node, r.vector(pod.Request)
			settled = append(settled, g.Settled[i])
		}
	}
	g.Settled = settled
	var barred map[identity.Role]map[string]bool
	s.mu.RLock()
	if record := s.records[v.key]; record != nil {
		barred = maps.Clone(record.barred)
	}
	s.mu.RUnlock()
	eligible := map[identity.Role][]bool{}
	at := 0
	for _, pod := range v.asking {
		if seat, seated := v.seats[pod.UID]; seated {
			g.Members[at].Request = r.vector(pod.Request)
			if node, there := slices.BinarySearch(r.Names, seat.Node); there {
				g.Members[at].Node = node
			} else {
				g.Members[at].Node = planner.NoNode
			}
			at++
		}
	}
	for _, pod := range v.offered {
		mask, known := eligible[pod.Role]
		if !known {
			object, err := s.pods.Pods(pod.Gang.Namespace).Get(pod.Name)
			if err != nil {
				object = v.recalled[pod.Gang.Namespace+"/"+pod.Name]
			}
			if object != nil {
				mask = r.eligible(object, barred[pod.Role])
			}
			eligible[pod.Role] = mask
		}
		g.Members[at].Request, g.Members[at].Eligible = r.vector(pod.Request), mask
		at++
	}
	return g
}

// eligible gives the nodes that a pod may use by what its spec and the nodes say: selectors, taints, cordons. What the other
// filters know beyond that (volumes, ports, other pods' affinity) they say when the pod comes to its planned node; that node
// is then barred and the gang planned again. nil: all nodes.
func (r *room) eligible(pod *v1.Pod, barred map[string]bool) []bool {
	affinity := nodeaffinity.GetRequiredNodeAffinity(pod)
	plain := len(barred) == 0 && len(pod.Spec.NodeSelector) == 0 && pod.Spec.Affinity == nil && pod.Spec.NodeName == ""
	mask := make([]bool, len(r.infos))
	all := true
	for i, info := range r.infos {
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
		if !plain && mask[i] {
			matches, err := affinity.Match(node)
			mask[i] = err == nil && matches && !barred[node.Name]
		}
		all = all && mask[i]
	}
	if all {
		return nil
	}
	return mask
}
