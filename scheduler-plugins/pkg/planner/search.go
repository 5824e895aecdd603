package planner

import (
	"cmp"
	"slices"

	"coach.dev/scheduler-plugins/pkg/identity"
)

// Bounds of the search member by member: trials (one member on one node), and gangs too large to be worth it, since each
// member is a level and so deep a search ends long before it tries another place for the first members.
const (
	searchSteps   = 60_000
	searchMembers = 200
)

// search gives the first full placement in a fixed order of trials, else the largest part met, and whether all was tried.
func search(s *Snapshot, job identity.Key, groups []Group, order []int) (Places, bool) {
	var sequence []int
	for _, g := range order {
		for range groups[g].Count {
			sequence = append(sequence, g)
		}
	}
	if len(sequence) > searchMembers {
		return nil, false
	}
	nodes := usefulNodes(s, job, groups)
	room := make([][]int64, len(nodes))
	for i, n := range nodes {
		room[i] = slices.Clone(s.Free[n])
	}
	masked := false
	for i := range groups {
		masked = masked || groups[i].Eligible != nil
	}
	var chosen, best []int
	trials := 0
	var descend func() bool
	descend = func() bool {
		depth := len(chosen)
		if depth > len(best) {
			best = slices.Clone(chosen)
		}
		if depth == len(sequence) {
			return true
		}
		group := &groups[sequence[depth]]
		// Equal members go in node order only: their permutations are one placement. Equal rooms: one stands for all.
		start := 0
		if depth > 0 && twins(&groups[sequence[depth-1]], group) {
			start = chosen[depth-1]
		}
		var tried [][]int64
		for at := start; at < len(nodes); at++ {
			if trials >= searchSteps {
				return false
			}
			if !group.mayUse(nodes[at]) || holds(room[at], group.Request, 1) == 0 {
				continue
			}
			if !masked && slices.ContainsFunc(tried, func(other []int64) bool { return slices.Equal(other, room[at]) }) {
				continue
			}
			trials++
			if !masked {
				tried = append(tried, slices.Clone(room[at]))
			}
			take(room[at], group.Request, 1)
			chosen = append(chosen, at)
			if descend() {
				return true
			}
			chosen = chosen[:depth]
			take(room[at], group.Request, -1)
		}
		return false
	}
	descend()
	places := make(Places, len(groups))
	for i, at := range best {
		places[sequence[i]] = append(places[sequence[i]], nodes[at])
	}
	return places, trials < searchSteps
}

// twins are groups whose members can stand for each other.
func twins(a, b *Group) bool {
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
			if groups[g].Count > 0 && groups[g].mayUse(n) && holds(s.Free[n], groups[g].Request, 1) > 0 {
				useful = append(useful, n)
				break
			}
		}
	}
	slices.SortStableFunc(useful, func(a, b int) int {
		if x, y := s.StandingOf(a, job), s.StandingOf(b, job); x != y {
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
// that can be placed beside them. Members of a group are equal, so this is complete, and polynomial in the counts, where
// going member by member is exponential.
func exact(s *Snapshot, job identity.Key, groups []Group) (places Places, decided bool) {
	if len(groups) == 0 {
		return Places{}, true
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

// gain is how many members of the last group a node takes beside a pattern of the others; false if not even the pattern fits.
func (c *counts) gain(free []int64, node, pattern int) (int, bool) {
	room := slices.Clone(free)
	for i, g := range c.head {
		count := c.digit(pattern, i)
		if count == 0 {
			continue
		}
		if !c.groups[g].mayUse(node) || holds(room, c.groups[g].Request, count) < count {
			return 0, false
		}
		take(room, c.groups[g].Request, count)
	}
	if !c.groups[c.last].mayUse(node) {
		return 0, true
	}
	return holds(room, c.groups[c.last].Request, c.groups[c.last].Count), true
}

// trace walks the choices back from the full state and gives each node what the best way put on it.
func (c *counts) trace(s *Snapshot, nodes []int, choices [][]int32) Places {
	patterns := make([]int, len(nodes))
	state := c.states - 1
	for i := len(nodes) - 1; i >= 0; i-- {
		before := int(choices[i][state])
		patterns[i], state = state-before, before
	}
	places := make(Places, len(c.groups))
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
