package planner

import (
	"slices"

	"coach.dev/scheduler-plugins/pkg/identity"
)

// Group is a number of equal members that are to be placed.
type Group struct {
	Role     identity.Role
	Request  []int64
	Count    int
	Eligible []bool // for each node, whether a member may go there at all; nil: everywhere
}

func (g *Group) eligible(node int) bool { return g.Eligible == nil || g.Eligible[node] }

// Places gives for each group the nodes of its members, in the order of the members.
type Placement [][]int

func (p Placement) total() int {
	n := 0
	for _, group := range p {
		n += len(group)
	}
	return n
}

// Packing is what Pack found: a place for every member, or the largest part it met, and whether no other way is left.
type Packing struct {
	Placement  Placement
	Complete   bool
	Exhaustive bool
}

// Pack looks for a place for every member of all groups, without touching the snapshot. Goals, in this order: all members
// placed; as few as possible on nodes of other jobs; as few nodes as possible; the tightest fit; the node's name. Packing
// vectors is NP-hard, so the goals are met by a greedy, and only the first is certain:
//
//  1. fill: take the node of the best preference that holds the most members, fill it largest member first, and go on;
//  2. best fit decreasing: each member, largest first, to the node of the best preference with the tightest fit;
//  3. count: give up where the nodes, one by one, cannot hold that many members of some size;
//  4. search: depth first, at most searchSteps trials; then exact, which enumerates counts instead of members;
//  5. improve: for a small gang on few nodes, go on searching for a placement that keeps more members apart from other jobs, or
//     uses fewer nodes.
func Pack(s *Snapshot, job identity.Key, groups []Group) Packing {
	order := bySize(s, groups)
	members := 0
	for i := range groups {
		members += groups[i].Count
	}
	best := make(Placement, len(groups))
	for _, way := range []func(*Snapshot, identity.Key, []Group, []int) Placement{fill, bestFit} {
		places := way(s, job, groups, order)
		if places.total() == members {
			return Packing{improve(s, job, groups, order, places), true, true}
		}
		if places.total() > best.total() {
			best = places
		}
	}
	if tooMany(s, groups) {
		return Packing{best, false, true}
	}
	if members <= searchMembers {
		search := newSearch(s, job, groups, order, searchSteps, nil)
		if search.found != nil {
			return Packing{search.places(), true, true}
		}
		if places := search.places(); places.total() > best.total() {
			best = places
		}
		if search.exhaustive() {
			return Packing{best, false, true}
		}
	}
	if places, decided := exact(s, job, groups); decided {
		if places != nil {
			return Packing{places, true, true}
		}
		return Packing{best, false, true}
	}
	return Packing{best, false, false}
}

// PlaceEach places those members that fit, one after the other, and allocates their capacity. sequence names a group for each.
// The result has a node for each of the sequence, or -1.
func PlaceEach(s *Snapshot, job identity.Key, groups []Group, sequence []int) []int {
	placed := make([]int, len(sequence))
	free := make([]int64, 0, 8)
	for i, g := range sequence {
		group := &groups[g]
		chosen := -1
		var preference NodePreference
		var left int64
		for n := range s.Names {
			if !group.eligible(n) || fitCount(s.Free[n], group.Request, 1) == 0 {
				continue
			}
			here := s.PreferenceOf(n, job)
			if chosen >= 0 && here > preference {
				continue
			}
			free = append(free[:0], s.Free[n]...)
			subtract(free, group.Request, 1)
			if slack := s.slack(free); chosen < 0 || here < preference || slack < left {
				chosen, preference, left = n, here, slack
			}
		}
		placed[i] = chosen
		if chosen >= 0 {
			s.Allocate(chosen, group.Request, job)
		}
	}
	return placed
}

// bySize orders groups largest first, then by role.
func bySize(s *Snapshot, groups []Group) []int {
	order := make([]int, len(groups))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		if x, y := s.size(groups[a].Request), s.size(groups[b].Request); x != y {
			if x > y {
				return -1
			}
			return 1
		}
		x, _ := groups[a].Role.Rank()
		y, _ := groups[b].Role.Rank()
		return x - y
	})
	return order
}

func bestFit(s *Snapshot, job identity.Key, groups []Group, order []int) Placement {
	var sequence []int
	for _, g := range order {
		for range groups[g].Count {
			sequence = append(sequence, g)
		}
	}
	places := make(Placement, len(groups))
	for i, node := range PlaceEach(s.Copy(), job, groups, sequence) {
		if node >= 0 {
			places[sequence[i]] = append(places[sequence[i]], node)
		}
	}
	return places
}

func fill(s *Snapshot, job identity.Key, groups []Group, order []int) Placement {
	places := make(Placement, len(groups))
	left := make([]int, len(groups))
	remaining := 0
	for i := range groups {
		left[i] = groups[i].Count
		remaining += groups[i].Count
	}
	if remaining == 0 || len(s.Names) == 0 {
		return places
	}
	free := make([]int64, len(s.Free[0]))
	takes, best := make([]int, len(groups)), make([]int, len(groups))
	used := make([]bool, len(s.Names))
	for remaining > 0 {
		chosen, most := -1, 0
		var preference NodePreference
		var tightest int64
		for n := range s.Names {
			if used[n] {
				continue
			}
			here := s.PreferenceOf(n, job)
			if chosen >= 0 && here > preference {
				continue
			}
			copy(free, s.Free[n])
			count := 0
			for _, g := range order {
				takes[g] = 0
				if left[g] > 0 && groups[g].eligible(n) {
					takes[g] = fitCount(free, groups[g].Request, left[g])
					subtract(free, groups[g].Request, takes[g])
					count += takes[g]
				}
			}
			if count == 0 || (chosen >= 0 && here == preference && count < most) {
				continue
			}
			if slack := s.slack(free); chosen < 0 || here < preference || count > most || slack < tightest {
				chosen, preference, most, tightest = n, here, count, slack
				copy(best, takes)
			}
		}
		if chosen < 0 {
			break
		}
		used[chosen] = true
		for g, count := range best {
			for range count {
				places[g] = append(places[g], chosen)
			}
			left[g] -= count
		}
		remaining -= most
	}
	return places
}

// tooMany reports whether the sum is short, or there are more members of some size or larger than such places on all nodes.
func tooMany(s *Snapshot, groups []Group) bool {
	for d := range s.largest {
		free, need := int64(0), int64(0)
		for n := range s.Names {
			free += max(s.Free[n][d], 0)
		}
		for i := range groups {
			need += groups[i].Request[d] * int64(groups[i].Count)
		}
		if need > 0 && need > free {
			return true
		}
	}
	for i := range groups {
		if groups[i].Count == 0 {
			continue
		}
		count := 0
		for j := range groups {
			if fits(groups[i].Request, groups[j].Request) {
				count += groups[j].Count
			}
		}
		places := 0
		for n := range s.Names {
			if places += fitCount(s.Free[n], groups[i].Request, count); places >= count {
				break
			}
		}
		if places < count {
			return true
		}
	}
	return false
}

// fits reports whether an amount is nowhere above a limit.
func fits(amount, limit []int64) bool {
	for d := range amount {
		if amount[d] > limit[d] {
			return false
		}
	}
	return true
}
