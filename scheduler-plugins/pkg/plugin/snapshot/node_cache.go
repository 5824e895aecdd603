package plugin

import (
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

// picture keeps what the nodes looked like at the last plan, so that the next one reads only those that changed: of 5,000 nodes a few. Only
// the scheduling cycle uses it, which is one goroutine.
type picture struct {
	given      []fwk.NodeInfo // in the order of the scheduler's snapshot, with
	objects    []*v1.Node     // the object that each had
	names      []string       // from here on by name
	infos      []fwk.NodeInfo
	dimensions []string
	capacity   [][]int64
	free       []int64 // capacity less what all pods request, node by node
	read       []int64 // the generation of each node that free is about
}

// of the nodes as they are now.
func (p *picture) of(nodes []fwk.NodeInfo) *picture {
	same := len(nodes) == len(p.given)
	for i := 0; same && i < len(nodes); i++ {
		same = nodes[i] == p.given[i] && nodes[i].Node() == p.objects[i]
	}
	if !same {
		p.draw(nodes)
	}
	for i, info := range p.infos {
		if generation := info.GetGeneration(); p.read[i] != generation {
			p.look(i)
			p.read[i] = generation
		}
	}
	return p
}

// draw anew: a node came, went, or changed its object.
func (p *picture) draw(nodes []fwk.NodeInfo) {
	*p = picture{given: slices.Clone(nodes), infos: slices.Clone(nodes), objects: make([]*v1.Node, len(nodes))}
	for i, info := range nodes {
		p.objects[i] = info.Node()
	}
	slices.SortFunc(p.infos, func(a, b fwk.NodeInfo) int { return strings.Compare(a.Node().Name, b.Node().Name) })
	extended := map[string]bool{}
	for _, info := range p.infos {
		for name := range info.GetAllocatable().GetScalarResources() {
			extended[string(name)] = true
		}
	}
	p.dimensions = slices.Concat([]string{cpu, memory}, slices.Sorted(maps.Keys(extended)), []string{storage, pods})
	width := len(p.dimensions)
	p.free, p.read = make([]int64, width*len(nodes)), make([]int64, len(nodes))
	slab := make([]int64, width*len(nodes))
	for i, info := range p.infos {
		whole := slab[i*width : (i+1)*width : (i+1)*width]
		allocatable := info.GetAllocatable()
		whole[0], whole[1] = allocatable.GetMilliCPU(), allocatable.GetMemory()
		for d := 2; d < width-2; d++ {
			whole[d] = allocatable.GetScalarResources()[v1.ResourceName(p.dimensions[d])]
		}
		whole[width-2], whole[width-1] = allocatable.GetEphemeralStorage(), int64(allocatable.GetAllowedPodNumber())
		p.names, p.capacity = append(p.names, info.Node().Name), append(p.capacity, whole)
		p.read[i] = -1
	}
}

// look at what is free on one node.
func (p *picture) look(i int) {
	width := len(p.dimensions)
	free, whole, requested := p.free[i*width:(i+1)*width], p.capacity[i], p.infos[i].GetRequested()
	free[0], free[1] = whole[0]-requested.GetMilliCPU(), whole[1]-requested.GetMemory()
	for d := 2; d < width-2; d++ {
		free[d] = whole[d] - requested.GetScalarResources()[v1.ResourceName(p.dimensions[d])]
	}
	free[width-2] = whole[width-2] - requested.GetEphemeralStorage()
	free[width-1] = whole[width-1] - int64(len(p.infos[i].GetPods()))
}

// vectors of what is free, to be changed by whoever asked.
func (p *picture) vectors() [][]int64 {
	width := len(p.dimensions)
	slab := slices.Clone(p.free)
	vectors := make([][]int64, len(p.infos))
	for i := range vectors {
		vectors[i] = slab[i*width : (i+1)*width : (i+1)*width]
	}
	return vectors
}
