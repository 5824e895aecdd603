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

// Gang is a job's pods that ask for nodes, and how many of each role must be there for it to run at all.
type Gang struct {
	Key     identity.Key
	Order   order.Key // Name is empty
	Needed  Counts
	Members []Member // not yet bound; those with a Node are on their way and hold its room in the snapshot already
	Settled []Member // bound, on a node that is still there
	Length  float64  // seconds for which it will hold its room if it starts now; negative where nobody can say
	Mistake string   // what contradicts itself in its objects, found by whoever read them
}

// Plan gives a node for every needed member that had none, or the reason why not; then for wanted members.
type Plan struct {
	Nodes []int // for each of Gang.Members; NoNode where this plan gives none
	Wait  *reason.Reason
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

// PlanNeeded finds nodes for the needed members and takes their room from the snapshot; or says why there are none, and takes
// nothing. Members that are bound or on their way count as present. Where everything fits, the needed members get the
// nodes that they would have among all members, so that the wanted ones can join them. draining names jobs that are leaving.
func PlanNeeded(s *Snapshot, gang *Gang, draining []identity.Key) Plan {
	if mistake := gang.mistake(); mistake != "" {
		return gang.wait(reason.Reason{Token: reason.Misconfigured, Text: mistake})
	}
	var settled, present, created, missing Counts
	onTheWay := 0
	for i := range gang.Settled {
		settled[gang.Settled[i].rank()]++
	}
	present = settled
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
	lacks := false
	for rank, needed := range gang.Needed {
		missing[rank] = max(needed-present[rank], 0)
		lacks = lacks || created[rank] < missing[rank]
	}
	if lacks {
		return gang.wait(waitMembers(gang, present, created))
	}
	if len(waiting) == 0 && onTheWay > 0 {
		return gang.wait(reason.Reason{Token: reason.Placing,
			Text: fmt.Sprintf("%d members bound, %d on their way to their nodes", settled.Total(), onTheWay)})
	}
	must := gang.first(waiting, missing)
	packing := Pack(s, gang.Key, gang.groups(must))
	if !packing.Complete {
		return gang.wait(explain(s, gang, must, missing, packing, draining))
	}
	plan := gang.none()
	if len(must) < len(waiting) {
		if whole := Pack(s, gang.Key, gang.groups(waiting)); whole.Complete {
			gang.assign(&plan, waiting, whole.Places)
			mine := gang.none()
			for _, m := range must {
				mine.Nodes[m] = plan.Nodes[m]
			}
			gang.take(s, &mine, must)
			return mine
		}
	}
	gang.assign(&plan, must, packing.Places)
	gang.take(s, &plan, must)
	return plan
}

// AddWanted gives nodes to the members beyond the needed ones as far as there is room and takes it from the snapshot: all of
// them together where they fit, else one by one by index, so that the roles grow evenly. It returns those that it placed.
func AddWanted(s *Snapshot, gang *Gang, plan *Plan) []int {
	var wanted []int
	for _, m := range gang.waiting() {
		if plan.Nodes[m] == NoNode {
			wanted = append(wanted, m)
		}
	}
	if len(wanted) == 0 {
		return nil
	}
	groups := gang.groups(wanted)
	if packing := Pack(s, gang.Key, groups); packing.Complete {
		gang.assign(plan, wanted, packing.Places)
		gang.take(s, plan, wanted)
		return wanted
	}
	sequence := make([]int, len(wanted))
	for i, m := range wanted {
		sequence[i] = gang.groupOf(groups, m)
	}
	var placed []int
	for i, node := range PlaceEach(s, gang.Key, groups, sequence) {
		if node >= 0 {
			plan.Nodes[wanted[i]] = node
			placed = append(placed, wanted[i])
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
			unusable[n] = !largest.mayUse(n) || !fits(largest.Request, s.Capacity[n])
		}
	}
	return unusable
}

// short gives the members that a verdict found without a node.
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

func (g *Gang) wait(why reason.Reason) Plan {
	plan := g.none()
	plan.Wait = &why
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

func (g *Gang) assign(plan *Plan, members []int, places Places) {
	groups := g.groups(members)
	used := make([]int, len(groups))
	for _, m := range members {
		i := g.groupOf(groups, m)
		plan.Nodes[m] = places[i][used[i]]
		used[i]++
	}
}

func (g *Gang) take(s *Snapshot, plan *Plan, members []int) {
	for _, m := range members {
		s.Take(plan.Nodes[m], g.Members[m].Request, g.Key)
	}
}

func (g *Gang) mistake() string {
	if g.Mistake != "" {
		return g.Mistake
	}
	for rank, needed := range g.Needed {
		if needed < 1 {
			return fmt.Sprintf("needs %d %ss, but at least 1 of each role runs an epoch", needed, identity.Roles[rank])
		}
	}
	names := map[string]int{}
	for _, member := range slices.Concat(g.Members, g.Settled) {
		if names[member.Name]++; names[member.Name] > 1 {
			return fmt.Sprintf("pod %s is there twice", member.Name)
		}
	}
	return ""
}
