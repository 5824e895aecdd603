package snapshot

import (
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"coach.dev/scheduler-plugins/pkg/gangstate"
)

// NodeCache keeps capacity and requests of the nodes from one plan to the next, so that a plan reads only the nodes that changed: a few
// of 5,000. Only the scheduling cycle uses it, which is one goroutine.
type NodeCache struct {
	given       []fwk.NodeInfo // in the order of the scheduler's snapshot
	objects     []*v1.Node     // the object that each of them had
	names       []string       // this and what follows is sorted by node name
	infos       []fwk.NodeInfo
	dimensions  []string
	capacity    [][]int64
	free        []int64 // capacity less what all pods request, node by node
	generations []int64 // of each node, when its part of free was computed
	stale       []bool  // of each node: members of gangs are bound there that the scheduler did not count then
}

// update the cache to the nodes of a scheduling cycle.
//
// A member that is bound to a node holds its room until the store forgets it, also if the scheduler has forgotten it already: the two
// hear of a deleted pod one after the other, in either order, and the store is where it is decided who gets the room.
func (c *NodeCache) update(nodes []fwk.NodeInfo, gangPods *gangstate.Store) *NodeCache {
	same := len(nodes) == len(c.given)
	for i := 0; same && i < len(nodes); i++ {
		same = nodes[i] == c.given[i] && nodes[i].Node() == c.objects[i]
	}
	if !same {
		c.rebuild(nodes)
	}
	for i, info := range c.infos {
		if generation := info.GetGeneration(); c.generations[i] != generation || c.stale[i] {
			c.updateFree(i, gangPods)
			c.generations[i] = generation
		}
	}
	return c
}

// rebuild the cache when a node was added, removed, or has another object.
func (c *NodeCache) rebuild(nodes []fwk.NodeInfo) {
	*c = NodeCache{given: slices.Clone(nodes), infos: slices.Clone(nodes), objects: make([]*v1.Node, len(nodes))}
	for i, info := range nodes {
		c.objects[i] = info.Node()
	}
	slices.SortFunc(c.infos, func(a, b fwk.NodeInfo) int { return strings.Compare(a.Node().Name, b.Node().Name) })
	extended := map[string]bool{}
	for _, info := range c.infos {
		for name := range info.GetAllocatable().GetScalarResources() {
			extended[string(name)] = true
		}
	}
	c.dimensions = slices.Concat([]string{cpu, memory}, slices.Sorted(maps.Keys(extended)), []string{storage, pods})
	width := len(c.dimensions)
	c.free, c.generations, c.stale = make([]int64, width*len(nodes)), make([]int64, len(nodes)), make([]bool, len(nodes))
	slab := make([]int64, width*len(nodes))
	for i, info := range c.infos {
		capacity := slab[i*width : (i+1)*width : (i+1)*width]
		for d, name := range c.dimensions {
			capacity[d] = allocatable(info, name)
		}
		c.names, c.capacity = append(c.names, info.Node().Name), append(c.capacity, capacity)
		c.generations[i] = -1
	}
}

// updateFree computes what is free on one node.
func (c *NodeCache) updateFree(i int, gangPods *gangstate.Store) {
	width := len(c.dimensions)
	for d, name := range c.dimensions {
		c.free[i*width+d] = c.capacity[i][d] - requested(c.infos[i], name)
	}
	c.stale[i] = false
	for _, pod := range gangPods.BoundTo(c.names[i]) {
		if !counts(c.infos[i], pod.UID) {
			c.stale[i] = true
			for d, name := range c.dimensions {
				c.free[i*width+d] -= pod.Requests[name]
			}
		}
	}
}

// counts reports whether the scheduler counts a pod on a node.
func counts(info fwk.NodeInfo, uid string) bool {
	return slices.ContainsFunc(info.GetPods(), func(pod fwk.PodInfo) bool { return string(pod.GetPod().UID) == uid })
}

// vectors of what is free, for the caller to change.
func (c *NodeCache) vectors() [][]int64 {
	width := len(c.dimensions)
	slab := slices.Clone(c.free)
	vectors := make([][]int64, len(c.infos))
	for i := range vectors {
		vectors[i] = slab[i*width : (i+1)*width : (i+1)*width]
	}
	return vectors
}
