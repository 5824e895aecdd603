// Package planner decides, on one snapshot of the cluster, where the members of a gang go: every required one or none.
//
// It is arithmetic on vectors: no client, no clock, no randomness; equal input gives equal output, whatever its order.
// Amounts are whole numbers (thousandths of a core, bytes, devices), so nothing fits by rounding. The same decisions are
// made in Python by coach/core/gang; tests/conformance holds the two equal.
package planner

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"coach.dev/scheduler-plugins/pkg/identity"
)

// NodePreference says how suitable a node is to a job, best first. To stay apart from other jobs comes before joining one's own:
// a neighbour takes bandwidth for as long as it runs.
type NodePreference int

const (
	Own       NodePreference = iota // it holds this job and no other
	Empty                           // it holds no job
	OwnShared                       // it holds this job and another
	OtherJobs                       // it holds other jobs only
)

// own reports whether the job has a member on the node.
func (s NodePreference) own() bool { return s == Own || s == OwnShared }

// apart reports whether no other job has a member on the node.
func (s NodePreference) apart() bool { return s == Own || s == Empty }

// Usage is capacity that a member of a job holds on a node.
type Usage struct {
	Node    int
	Request []int64
}

// Snapshot is the cluster at one instant. It grows as plans are committed to it; Copy makes a what-if.
type Snapshot struct {
	Names    []string // of the nodes, ascending
	Capacity [][]int64
	Free     [][]int64 // capacity less what all pods hold; below zero counts as nothing
	// Jobs gives for each node how many members each job has there; nil for none.
	// The maps are never changed in place.
	Jobs []map[identity.Key]int
	// UsageOf gives what a job holds in the cluster itself; plans committed here are added to it.
	UsageOf func(identity.Key) []Usage
	// SizeDimensions is how many of the leading dimensions count as size. The others (pods a node, host ports) limit, but a node is
	// not large for having many of them left.
	SizeDimensions int
	// OtherPods gives for each node how many pods of no job it holds; nil for none.
	OtherPods []int
	// Devices says for each dimension what one of it is called, where it counts devices: "GPU", or the resource's name; else "".
	Devices []string
	// Format prints an amount, such as "1 cpu 2 GiB".
	Format func([]int64) string

	largest []int64 // of each dimension, the most that any node has
	added   map[identity.Key][]Usage
	shared  bool // the list Jobs belongs to another snapshot too and is copied before it is written
}

// NewSnapshot of nodes whose names are in ascending order; free is taken over and changed.
func NewSnapshot(names []string, capacity, free [][]int64, sized int) *Snapshot {
	s := &Snapshot{Names: names, Capacity: capacity, Free: free, SizeDimensions: sized,
		Jobs: make([]map[identity.Key]int, len(names)), UsageOf: func(identity.Key) []Usage { return nil },
		Format: func(amount []int64) string { return fmt.Sprint(amount) }}
	if len(capacity) > 0 {
		s.largest = slices.Clone(capacity[0])
		for _, node := range capacity {
			for d, amount := range node {
				s.largest[d] = max(s.largest[d], amount)
			}
		}
	}
	return s
}

// Copy is an independent snapshot with the same content.
func (s *Snapshot) Copy() *Snapshot {
	other := *s
	other.Free = cloneAll(s.Free)
	other.Jobs, other.shared, s.shared = s.Jobs, true, true
	other.added = map[identity.Key][]Usage{}
	for job, fitCount := range s.added {
		other.added[job] = slices.Clone(fitCount)
	}
	return &other
}

// Without is the same cluster with no pod on it.
func (s *Snapshot) Without() *Snapshot {
	return NewSnapshot(s.Names, s.Capacity, cloneAll(s.Capacity), s.SizeDimensions)
}

func cloneAll(vectors [][]int64) [][]int64 {
	if len(vectors) == 0 {
		return nil
	}
	width := len(vectors[0])
	slab := make([]int64, width*len(vectors))
	clones := make([][]int64, len(vectors))
	for i, vector := range vectors {
		clones[i] = slab[i*width : (i+1)*width : (i+1)*width]
		copy(clones[i], vector)
	}
	return clones
}

// Allocate capacity on a node for a member of a job.
func (s *Snapshot) Allocate(node int, request []int64, job identity.Key) {
	subtract(s.Free[node], request, 1)
	s.count(node, job, 1)
	if s.added == nil {
		s.added = map[identity.Key][]Usage{}
	}
	s.added[job] = append(s.added[job], Usage{node, request})
}

// Release all that a job holds.
func (s *Snapshot) Release(job identity.Key) {
	for _, hold := range slices.Concat(s.UsageOf(job), s.added[job]) {
		subtract(s.Free[hold.Node], hold.Request, -1)
		s.count(hold.Node, job, -1)
	}
	delete(s.added, job)
	before := s.UsageOf
	s.UsageOf = func(asked identity.Key) []Usage {
		if asked == job {
			return nil
		}
		return before(asked)
	}
}

// UsesAny reports whether a job has a member on any node.
func (s *Snapshot) UsesAny(job identity.Key) bool { return len(s.UsageOf(job))+len(s.added[job]) > 0 }

// count replaces the maps that it changes: other snapshots, and the maker of Jobs, keep them.
func (s *Snapshot) count(node int, job identity.Key, by int) {
	if s.shared {
		s.Jobs, s.shared = slices.Clone(s.Jobs), false
	}
	jobs := maps.Clone(s.Jobs[node])
	if jobs == nil {
		jobs = map[identity.Key]int{}
	}
	if jobs[job] += by; jobs[job] <= 0 {
		delete(jobs, job)
	}
	s.Jobs[node] = jobs
}

// PreferenceOf a node for a job.
func (s *Snapshot) PreferenceOf(node int, job identity.Key) NodePreference {
	jobs := s.Jobs[node]
	if len(jobs) == 0 {
		return Empty
	}
	return Preference(jobs[job] > 0, len(jobs) > 1 || jobs[job] == 0)
}

// Preference for a node that holds members of the job (own) or of other jobs (others).
func Preference(own, others bool) NodePreference {
	switch {
	case own && !others:
		return Own
	case own:
		return OwnShared
	case others:
		return OtherJobs
	}
	return Empty
}

// size is the largest share of an amount in the largest node, in billionths.
func (s *Snapshot) size(amount []int64) int64 {
	size := int64(0)
	for d := range s.SizeDimensions {
		size = max(size, s.share(d, amount))
	}
	return size
}

// slack is how much of a node an amount would leave unused: the sum of its shares, in billionths.
func (s *Snapshot) slack(amount []int64) int64 {
	slack := int64(0)
	for d := range s.SizeDimensions {
		slack += s.share(d, amount)
	}
	return slack
}

// share is rounded to billionths, so that equal amounts tie however they came about.
func (s *Snapshot) share(dimension int, amount []int64) int64 {
	if len(s.largest) == 0 || s.largest[dimension] == 0 {
		return 0 // no node has any of it
	}
	return int64(math.Round(float64(amount[dimension]) / float64(s.largest[dimension]) * 1e9))
}

// Norm is the Euclidean norm of an amount, each dimension relative to the largest node (FitGpp's ||D||).
func (s *Snapshot) Norm(amount []int64) float64 {
	sum := 0.0
	for d := range min(s.SizeDimensions, len(s.largest)) {
		if s.largest[d] > 0 {
			share := float64(amount[d]) / float64(s.largest[d])
			sum += share * share
		}
	}
	return math.Sqrt(sum)
}

// fitCount gives how many times request fits into free, up to most.
func fitCount(free, request []int64, most int) int {
	for d, amount := range request {
		if amount <= 0 {
			continue
		}
		if free[d] < amount {
			return 0
		}
		if n := free[d] / amount; n < int64(most) {
			most = int(n)
		}
	}
	return max(most, 0)
}

// subtract count requests from free.
func subtract(free, request []int64, count int) {
	for d, amount := range request {
		free[d] -= amount * int64(count)
	}
}
