package planner

import (
	"cmp"
	"slices"

	"coach.dev/scheduler-plugins/pkg/identity"
)

// Bounds of the search member by member, in trials (one member on one node), and gangs too large to be worth it, since each
// member is a level and so deep a search ends long before it tries another place for the first members.
const (
	searchSteps   = 60_000 // for a first placement
	searchMembers = 200
	improveSteps  = 4_000 // for a better one than is known
	improveSize   = 400   // members times nodes up to which a better one is searched for at all
)

// cost of a placement: members on nodes of other jobs, then nodes where the job had no member before.
type cost struct{ shared, opened int }

func (c cost) less(other cost) bool {
	return c.shared < other.shared || (c.shared == other.shared && c.opened < other.opened)
}

// search goes depth first over all placements, in a fixed order of trials.
type search struct {
	groups     []Group
	sequence   []int // for each member its group
	nodes      []int
	free       [][]int64
	preference []NodePreference
	members    []int // of the job, on each node
	masked     bool
	steps      int
	below      *cost // what a placement has to stay below
	chosen     []int
	largest    []int
	found      []int
}

func newSearch(s *Snapshot, job identity.Key, groups []Group, order []int, steps int, below *cost) *search {
	x := &search{groups: groups, nodes: usefulNodes(s, job, groups), steps: steps, below: below}
	for _, g := range order {
		x.masked = x.masked || groups[g].Eligible != nil
		for range groups[g].Count {
			x.sequence = append(x.sequence, g)
		}
	}
	for _, n := range x.nodes {
		preference := s.PreferenceOf(n, job)
		x.free, x.preference = append(x.free, slices.Clone(s.Free[n])), append(x.preference, preference)
		own := 0
		if preference.own() {
			own = 1
		}
		x.members = append(x.members, own)
	}
	x.descend(cost{})
	return x
}

// exhaustive reports whether the trials sufficed.
func (x *search) exhaustive() bool { return x.steps > 0 }

// places of the best full placement, else of the first of the largest parts met.
func (x *search) places() Placement {
	best := x.found
	if best == nil {
		best = x.largest
	}
	places := make(Placement, len(x.groups))
	for i, at := range best {
		places[x.sequence[i]] = append(places[x.sequence[i]], x.nodes[at])
	}
	return places
}

func (x *search) descend(spent cost) {
	depth := len(x.chosen)
	if x.below != nil && !spent.less(*x.below) {
		return
	}
	if depth > len(x.largest) {
		x.largest = slices.Clone(x.chosen)
	}
	if depth == len(x.sequence) {
		if x.found == nil {
			x.steps = min(x.steps, improveSteps)
		}
		x.found, x.below = slices.Clone(x.chosen), &spent
		return
	}
	group := &x.groups[x.sequence[depth]]
	// Equal members go in node order only: their permutations are one placement.
	start := 0
	if depth > 0 && interchangeable(&x.groups[x.sequence[depth-1]], group) {
		start = x.chosen[depth-1]
	}
	var tried []int
	var frees [][]int64
	for at := start; at < len(x.nodes); at++ {
		if !group.eligible(x.nodes[at]) || fitCount(x.free[at], group.Request, 1) == 0 || x.likeOneOf(at, tried, frees) {
			continue
		}
		if x.steps <= 0 {
			return
		}
		x.steps--
		tried, frees = append(tried, at), append(frees, slices.Clone(x.free[at]))
		next := spent
		if !x.preference[at].apart() {
			next.shared++
		}
		if x.members[at] == 0 {
			next.opened++
		}
		subtract(x.free[at], group.Request, 1)
		x.members[at]++
		x.chosen = append(x.chosen, at)
		x.descend(next)
		x.chosen = x.chosen[:depth]
		x.members[at]--
		subtract(x.free[at], group.Request, -1)
	}
}

// likeOneOf reports whether a node is like one that was tried: one trial is enough for all. Where members may not use every node,
// no two nodes are alike.
func (x *search) likeOneOf(at int, tried []int, frees [][]int64) bool {
	for i, other := range tried {
		if !x.masked && x.preference[at] == x.preference[other] && (x.members[at] > 0) == (x.members[other] > 0) && slices.Equal(x.free[at], frees[i]) {
			return true
		}
	}
	return false
}

// improve gives a better placement than one that is known and complete, if a search finds one.
func improve(s *Snapshot, job identity.Key, groups []Group, order []int, known Placement) Placement {
	if known.total()*len(s.Names) > improveSize {
		return known
	}
	spent, least := cost{}, cost{opened: 1}
	opened := map[int]bool{}
	for _, group := range known {
		for _, n := range group {
			preference := s.PreferenceOf(n, job)
			if !preference.apart() {
				spent.shared++
			}
			if !preference.own() {
				opened[n] = true
			}
		}
	}
	spent.opened = len(opened)
	for n := range s.Names {
		if s.PreferenceOf(n, job).own() {
			least.opened = 0
		}
	}
	for i := range groups {
		somewhere := false
		for n := range s.Names {
			somewhere = somewhere || (s.PreferenceOf(n, job).apart() && groups[i].eligible(n) && fitCount(s.Free[n], groups[i].Request, 1) > 0)
		}
		if !somewhere {
			least.shared += groups[i].Count
		}
	}
	if !least.less(spent) {
		return known
	}
	if better := newSearch(s, job, groups, order, improveSteps, &spent); better.found != nil {
		return better.places()
	}
	return known
}

// interchangeable groups have members that can replace each other.
func interchangeable(a, b *Group) bool {
	if a == b {
		return true
	}
	return a.Eligible == nil && b.Eligible == nil && slices.Equal(a.Request, b.Request)
}

// usefulNodes gives the nodes that can take a member of any group, the most welcome first, then the emptiest.
func usefulNodes(s *Snapshot, job identity.Key, groups []Group) []int {
	var useful []int
	for n := range s.Names {
		for g := range groups {
			if groups[g].Count > 0 && groups[g].eligible(n) && fitCount(s.Free[n], groups[g].Request, 1) > 0 {
				useful = append(useful, n)
				break
			}
		}
	}
	slices.SortStableFunc(useful, func(a, b int) int {
		if x, y := s.PreferenceOf(a, job), s.PreferenceOf(b, job); x != y {
			return int(x - y)
		}
		return cmp.Compare(s.slack(s.Free[b]), s.slack(s.Free[a]))
	})
	return useful
}

// maxExactWork bounds the exact search, in (state, choice) pairs: about a tenth of a second.
const maxExactWork = 20_000_000

// exact decides by dynamic programming over the nodes whether all members can be placed; decided is false past its bound. A
// state says how many members of each group but the largest are placed; its value is the most members of the largest group
// that can be placed in addition. Members of a group are equal, so this is complete, and polynomial in the counts, where
// going member by member is exponential.
func exact(s *Snapshot, job identity.Key, groups []Group) (places Placement, decided bool) {
	if len(groups) == 0 {
		return Placement{}, true
	}
	head := make([]int, len(groups))
	for i := range head {
		head[i] = i
	}
	slices.SortStableFunc(head, func(a, b int) int { return groups[a].Count - groups[b].Count })
	tail := head[len(head)-1]
	head = head[:len(head)-1]
	table := counts{groups: groups, head: head, last: tail, stride: make([]int, len(head)), states: 1}
	for i, g := range head {
		table.stride[i] = table.states
		if table.states *= groups[g].Count + 1; table.states > maxExactWork {
			return nil, false
		}
	}
	nodes := usefulNodes(s, job, groups)
	if table.states > maxExactWork/table.states/max(len(nodes), 1) {
		return nil, false
	}

	const unreachable = -1
	most := groups[tail].Count
	value := make([]int, table.states)
	for i := range value {
		value[i] = unreachable
	}
	value[0] = 0
	full := table.states - 1
	var choices [][]int32 // for each node and state: the state before the node
	for i := 0; value[full] < most; i++ {
		if i == len(nodes) {
			return nil, true
		}
		next, choice := slices.Clone(value), make([]int32, table.states)
		for state := range choice {
			choice[state] = int32(state)
		}
		for pattern := range table.states {
			gain, ok := table.gain(s.Free[nodes[i]], nodes[i], pattern)
			for from := 0; ok && from < table.states-pattern; from++ {
				if value[from] == unreachable || !table.adds(from, pattern) {
					continue
				}
				if total := min(value[from]+gain, most); total > next[from+pattern] {
					next[from+pattern], choice[from+pattern] = total, int32(from)
				}
			}
		}
		value, choices = next, append(choices, choice)
	}
	return table.trace(s, nodes[:len(choices)], choices), true
}

// counts numbers the states of exact: mixed-radix numbers whose digits are members placed, one digit for each head group.
type counts struct {
	groups []Group
	head   []int
	last   int
	stride []int
	states int
}

func (c *counts) digit(state, i int) int {
	return state / c.stride[i] % (c.groups[c.head[i]].Count + 1)
}

// adds reports whether a pattern can be added to a state without any group passing its count.
func (c *counts) adds(state, pattern int) bool {
	for i, g := range c.head {
		if c.digit(state, i)+c.digit(pattern, i) > c.groups[g].Count {
			return false
		}
	}
	return true
}

// gain is how many members of the last group a node takes along with a pattern of the others; false if not even the pattern fits.
func (c *counts) gain(free []int64, node, pattern int) (int, bool) {
	free = slices.Clone(free)
	for i, g := range c.head {
		count := c.digit(pattern, i)
		if count == 0 {
			continue
		}
		if !c.groups[g].eligible(node) || fitCount(free, c.groups[g].Request, count) < count {
			return 0, false
		}
		subtract(free, c.groups[g].Request, count)
	}
	if !c.groups[c.last].eligible(node) {
		return 0, true
	}
	return fitCount(free, c.groups[c.last].Request, c.groups[c.last].Count), true
}

// trace walks the choices back from the full state and gives each node what the best way put on it.
func (c *counts) trace(s *Snapshot, nodes []int, choices [][]int32) Placement {
	patterns := make([]int, len(nodes))
	state := c.states - 1
	for i := len(nodes) - 1; i >= 0; i-- {
		before := int(choices[i][state])
		patterns[i], state = state-before, before
	}
	places := make(Placement, len(c.groups))
	left := c.groups[c.last].Count
	for i, n := range nodes {
		for h, g := range c.head {
			for range c.digit(patterns[i], h) {
				places[g] = append(places[g], n)
			}
		}
		gain, _ := c.gain(s.Free[n], n, patterns[i])
		for range min(gain, left) {
			places[c.last] = append(places[c.last], n)
		}
		left -= min(gain, left)
	}
	return places
}
