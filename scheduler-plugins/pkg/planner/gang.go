package planner

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"coach.dev/scheduler-plugins/pkg/identity"
	"coach.dev/scheduler-plugins/pkg/order"
	"coach.dev/scheduler-plugins/pkg/reason"
)

// Counts holds a number for each role, by identity.Role.Rank.
type Counts [len(identity.Roles)]int

// Total over all roles.
func (c Counts) Total() int {
	n := 0
	for _, count := range c {
		n += count
	}
	return n
}

// Short lists the roles whose count is above zero.
func (c Counts) Short() []reason.Count {
	var short []reason.Count
	for rank, count := range c {
		if count > 0 {
			short = append(short, reason.Count{Role: identity.Roles[rank], Members: count})
		}
	}
	return short
}

// NoNode is the node of a member that has none.
const NoNode = -1

// Member is a pod of a gang.
type Member struct {
	Name     string
	Role     identity.Role
	Index    int // of its role: 0, 1 ...
	Request  []int64
	Eligible []bool // as in Group
	Node     int    // where an earlier plan sent it, or NoNode
}

func (m *Member) rank() int {
	rank, _ := m.Role.Rank()
	return rank
}

// Gang is a job's pods that ask for nodes, and how many of each role it requires to run.
type Gang struct {
	Key      identity.Key
	Order    order.Key // Name is empty
	Required Counts
	Members  []Member // not yet bound; those with a Node hold its capacity in the snapshot already
	Bound    []Member // on a node that still exists
	Duration float64  // seconds for which it will hold its capacity if it starts now; negative if unknown
	Invalid  string   // what contradicts itself in its objects, found by the caller
}

// Plan gives a node for every required member that had none, or the reason why not; then for optional ones.
type Plan struct {
	Nodes   []int // for each of Gang.Members; NoNode where this plan gives none
	Pending *reason.Reason
}

// Placed lists the members to which a plan gives a node.
func (g *Gang) Placed(plan *Plan) []int {
	var placed []int
	for m, node := range plan.Nodes {
		if node != NoNode {
			placed = append(placed, m)
		}
	}
	return placed
}

// PlanRequired finds nodes for the required members and allocates their capacity in the snapshot; or says why there are none, and allocates
// nothing. Members that are bound or on their way count as present. Where everything fits, the required members get the
// nodes that they would have among all members, so that the optional ones can join them. draining names jobs that are leaving.
func PlanRequired(s *Snapshot, gang *Gang, draining []identity.Key) Plan {
	if invalid := gang.invalid(); invalid != "" {
		return gang.pending(reason.Reason{Token: reason.Misconfigured, Text: invalid})
	}
	var bound, present, created, missing Counts
	onTheWay := 0
	for i := range gang.Bound {
		bound[gang.Bound[i].rank()]++
	}
	present = bound
	waiting := gang.waiting()
	for _, m := range waiting {
		created[gang.Members[m].rank()]++
	}
	for i := range gang.Members {
		if gang.Members[i].Node != NoNode {
			present[gang.Members[i].rank()]++
			onTheWay++
		}
	}
	incomplete := false
	for rank, required := range gang.Required {
		missing[rank] = max(required-present[rank], 0)
		incomplete = incomplete || created[rank] < missing[rank]
	}
	if incomplete {
		return gang.pending(pendingMembers(gang, present, created))
	}
	if len(waiting) == 0 && onTheWay > 0 {
		return gang.pending(reason.Reason{Token: reason.Placing,
			Text: fmt.Sprintf("%d members bound, %d on their way to their nodes", bound.Total(), onTheWay)})
	}
	unplaced := gang.first(waiting, missing)
	packing := Pack(s, gang.Key, gang.groups(unplaced))
	if !packing.Complete {
		return gang.pending(explain(s, gang, unplaced, missing, packing, draining))
	}
	plan := gang.none()
	if len(unplaced) < len(waiting) {
		if whole := Pack(s, gang.Key, gang.groups(waiting)); whole.Complete {
			gang.assign(&plan, waiting, whole.Placement)
			mine := gang.none()
			for _, m := range unplaced {
				mine.Nodes[m] = plan.Nodes[m]
			}
			gang.allocate(s, &mine, unplaced)
			return mine
		}
	}
	gang.assign(&plan, unplaced, packing.Placement)
	gang.allocate(s, &plan, unplaced)
	return plan
}

// AddOptional gives nodes to the members beyond the required ones as far as there is capacity and allocates it in the snapshot: all of
// them together where they fit, else one by one by index, so that the roles grow evenly. It returns those that it placed.
func AddOptional(s *Snapshot, gang *Gang, plan *Plan) []int {
	var optional []int
	for _, m := range gang.waiting() {
		if plan.Nodes[m] == NoNode {
			optional = append(optional, m)
		}
	}
	if len(optional) == 0 {
		return nil
	}
	groups := gang.groups(optional)
	if packing := Pack(s, gang.Key, groups); packing.Complete {
		gang.assign(plan, optional, packing.Placement)
		gang.allocate(s, plan, optional)
		return optional
	}
	sequence := make([]int, len(optional))
	for i, m := range optional {
		sequence[i] = gang.groupOf(groups, m)
	}
	var placed []int
	for i, node := range PlaceEach(s, gang.Key, groups, sequence) {
		if node >= 0 {
			plan.Nodes[optional[i]] = node
			placed = append(placed, optional[i])
		}
	}
	return placed
}

// FitsMissing reports whether so many members of a gang, those that are first in line, fit into what is free.
func FitsMissing(s *Snapshot, gang *Gang, missing []reason.Count) bool {
	return Pack(s, gang.Key, gang.groups(gang.short(missing))).Complete
}

// Unusable gives for each node whether the largest of such members of a gang could not use it even if it were empty. The small
// ones, a parameter-server scheduler above all, can use nearly every node, and are not what a gang waits for.
func Unusable(s *Snapshot, gang *Gang, missing []reason.Count) []bool {
	unusable := make([]bool, len(s.Names))
	groups := gang.groups(gang.short(missing))
	for n := range unusable {
		unusable[n] = true
		if len(groups) > 0 {
			largest := &groups[bySize(s, groups)[0]]
			unusable[n] = !largest.eligible(n) || !fits(largest.Request, s.Capacity[n])
		}
	}
	return unusable
}

// short gives the members that a reason names as missing.
func (g *Gang) short(missing []reason.Count) []int {
	var counts Counts
	for _, count := range missing {
		rank, _ := count.Role.Rank()
		counts[rank] = count.Members
	}
	return g.first(g.waiting(), counts)
}

func (g *Gang) none() Plan {
	nodes := make([]int, len(g.Members))
	for i := range nodes {
		nodes[i] = NoNode
	}
	return Plan{Nodes: nodes}
}

func (g *Gang) pending(why reason.Reason) Plan {
	plan := g.none()
	plan.Pending = &why
	return plan
}

// waiting gives the members without a node, by index, then role.
func (g *Gang) waiting() []int {
	var waiting []int
	for i := range g.Members {
		if g.Members[i].Node == NoNode {
			waiting = append(waiting, i)
		}
	}
	slices.SortStableFunc(waiting, func(a, b int) int {
		x, y := &g.Members[a], &g.Members[b]
		return cmp.Or(x.Index-y.Index, x.rank()-y.rank(), strings.Compare(x.Name, y.Name))
	})
	return waiting
}

// first gives of each role the first count members, role by role.
func (g *Gang) first(waiting []int, count Counts) []int {
	var chosen []int
	for rank := range count {
		left := count[rank]
		for _, m := range waiting {
			if left > 0 && g.Members[m].rank() == rank {
				chosen = append(chosen, m)
				left--
			}
		}
	}
	return chosen
}

// groups puts equal members together; the members of a group keep their order.
func (g *Gang) groups(members []int) []Group {
	var groups []Group
	for _, m := range members {
		if i := g.groupOf(groups, m); i >= 0 {
			groups[i].Count++
			continue
		}
		member := &g.Members[m]
		groups = append(groups, Group{Role: member.Role, Request: member.Request, Count: 1, Eligible: member.Eligible})
	}
	return groups
}

func (g *Gang) groupOf(groups []Group, m int) int {
	member := &g.Members[m]
	return slices.IndexFunc(groups, func(group Group) bool {
		return group.Role == member.Role && slices.Equal(group.Request, member.Request) && slices.Equal(group.Eligible, member.Eligible)
	})
}

func (g *Gang) assign(plan *Plan, members []int, places Placement) {
	groups := g.groups(members)
	used := make([]int, len(groups))
	for _, m := range members {
		i := g.groupOf(groups, m)
		plan.Nodes[m] = places[i][used[i]]
		used[i]++
	}
}

func (g *Gang) allocate(s *Snapshot, plan *Plan, members []int) {
	for _, m := range members {
		s.Allocate(plan.Nodes[m], g.Members[m].Request, g.Key)
	}
}

func (g *Gang) invalid() string {
	if g.Invalid != "" {
		return g.Invalid
	}
	members := slices.Concat(g.Members, g.Bound)
	for rank, required := range g.Required {
		// Jobs that train by all-reduce have no servers, programs no scheduler.
		role := identity.Roles[rank]
		there := role == identity.Worker || slices.ContainsFunc(members, func(m Member) bool { return m.Role == role })
		if required < 1 && there {
			return fmt.Sprintf("needs %d %ss, but at least 1 of each role runs an epoch", required, identity.Roles[rank])
		}
	}
	names := map[string]int{}
	for _, member := range members {
		if names[member.Name]++; names[member.Name] > 1 {
			return fmt.Sprintf("pod %s is there twice", member.Name)
		}
	}
	return ""
}
