// Package planner decides, on one snapshot of the cluster, where the members of a gang go: every needed one or none.
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

// Standing says how welcome a node is to a job, best first. To stay apart from other jobs comes before joining one's own:
// a neighbour takes bandwidth for as long as it runs.
type Standing int

const (
	Own       Standing = iota // it holds this job and no other
	Empty                     // it holds no job
	OwnShared                 // it holds this job and another
	Foreign                   // it holds other jobs only
)

// own reports whether the job stands on the node.
func (s Standing) own() bool { return s == Own || s == OwnShared }

// apart reports whether no other job stands on the node.
func (s Standing) apart() bool { return s == Own || s == Empty }

// Hold is room that a member of a job takes on a node.
type Hold struct {
	Node    int
	Request []int64
}

// Snapshot is the cluster at one instant. It grows as plans are committed to it; Copy makes a what-if.
type Snapshot struct {
	Names    []string // of the nodes, ascending
	Capacity [][]int64
	Free     [][]int64 // capacity less what all pods hold; below zero counts as nothing
	// Jobs gives for each node how many members of each job stand there; nil for none.
	// The maps are never changed in place.
	Jobs []map[identity.Key]int
	// Holds tells what a job holds in the cluster itself; plans committed here are added to it.
	Holds func(identity.Key) []Hold
	// Sized is how many of the leading dimensions count as size. The others (pods a node, host ports) limit, but a node is
	// not large for having many of them left.
	Sized int
	// Strangers gives for each node how many pods that belong to no job stand there; nil for none.
	Strangers []int
	// Words prints an amount for people, such as "1 cpu 2 GiB".
	Words func([]int64) string

	largest []int64 // of each dimension, the most that any node has
	added   map[identity.Key][]Hold
	shared  bool // the list Jobs belongs to another snapshot too and is copied before it is written
}

// NewSnapshot of nodes whose names are in ascending order; free is taken over and changed.
func NewSnapshot(names []string, capacity, free [][]int64, sized int) *Snapshot {
	s := &Snapshot{Names: names, Capacity: capacity, Free: free, Sized: sized,
		Jobs: make([]map[identity.Key]int, len(names)), Holds: func(identity.Key) []Hold { return nil },
		Words: func(amount []int64) string { return fmt.Sprint(amount) }}
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
	other.added = map[identity.Key][]Hold{}
	for job, holds := range s.added {
		other.added[job] = slices.Clone(holds)
	}
	return &other
}

// Without is the same cluster with no pod on it.
func (s *Snapshot) Without() *Snapshot {
	return NewSnapshot(s.Names, s.Capacity, cloneAll(s.Capacity), s.Sized)
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

// Take room on a node for a member of a job.
func (s *Snapshot) Take(node int, request []int64, job identity.Key) {
	take(s.Free[node], request, 1)
	s.count(node, job, 1)
	if s.added == nil {
		s.added = map[identity.Key][]Hold{}
	}
	s.added[job] = append(s.added[job], Hold{node, request})
}

// GiveBack frees all that a job holds, and says on which nodes.
func (s *Snapshot) GiveBack(job identity.Key) {
	for _, hold := range slices.Concat(s.Holds(job), s.added[job]) {
		take(s.Free[hold.Node], hold.Request, -1)
		s.count(hold.Node, job, -1)
	}
	delete(s.added, job)
	before := s.Holds
	s.Holds = func(asked identity.Key) []Hold {
		if asked == job {
			return nil
		}
		return before(asked)
	}
}

// Holding reports whether a job has a member on any node.
func (s *Snapshot) Holding(job identity.Key) bool { return len(s.Holds(job))+len(s.added[job]) > 0 }

// count replaces the maps that it changes: other snapshots, and whoever made Jobs, hold on to them.
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

// StandingOf a node for a job.
func (s *Snapshot) StandingOf(node int, job identity.Key) Standing {
	jobs := s.Jobs[node]
	if len(jobs) == 0 {
		return Empty
	}
	return Stand(jobs[job] > 0, len(jobs) > 1 || jobs[job] == 0)
}

// Stand is the standing of a node that holds members of the job (own) or of other jobs (others).
func Stand(own, others bool) Standing {
	switch {
	case own && !others:
		return Own
	case own:
		return OwnShared
	case others:
		return Foreign
	}
	return Empty
}

// size is the largest share of an amount in the largest node, in billionths.
func (s *Snapshot) size(amount []int64) int64 {
	size := int64(0)
	for d := range s.Sized {
		size = max(size, s.share(d, amount))
	}
	return size
}

// slack is how much of a node an amount would leave unused: the sum of its shares, in billionths.
func (s *Snapshot) slack(amount []int64) int64 {
	slack := int64(0)
	for d := range s.Sized {
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
	for d := range min(s.Sized, len(s.largest)) {
		if s.largest[d] > 0 {
			share := float64(amount[d]) / float64(s.largest[d])
			sum += share * share
		}
	}
	return math.Sqrt(sum)
}

// holds gives how many times request fits into free, up to most.
func holds(free, request []int64, most int) int {
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

// take subtracts count requests from free.
func take(free, request []int64, count int) {
	for d, amount := range request {
		free[d] -= amount * int64(count)
	}
}
