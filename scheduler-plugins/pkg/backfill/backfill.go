// Package backfill decides who may take room while a gang ahead in the queue waits for it, and plans several gangs in queue
// order over one snapshot. It is pure, like package planner.
package backfill

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"

	"coach.dev/scheduler-plugins/pkg/identity"
	"coach.dev/scheduler-plugins/pkg/planner"
	"coach.dev/scheduler-plugins/pkg/reason"
)

// Policy is the one knob: who may pass the head, which is the first gang in queue order that waits for room.
type Policy string

const (
	Strict Policy = "strict" // nobody
	Pool   Policy = "pool"   // who uses only nodes that the largest members of the head could not use even if they were empty
	Easy   Policy = "easy"   // who ends before the head can start, or leaves it room at its start; without predicted ends, nobody
	Any    Policy = "any"    // everybody who fits: nothing idles, and a large gang may wait for ever
)

// Policies in the order of docs and errors.
var Policies = [...]Policy{Strict, Pool, Easy, Any}

// Limits bound how long a head can be passed; beyond either it is treated strictly. Negative: no bound.
type Limits struct {
	Bypasses int     // gangs that passed it
	Age      float64 // seconds that it has waited for room
}

// NoLimits bounds nothing.
var NoLimits = Limits{Bypasses: -1, Age: -1}

func (l Limits) reached(bypassed int, waited float64) bool {
	return (l.Bypasses >= 0 && bypassed >= l.Bypasses) || (l.Age >= 0 && waited >= l.Age)
}

// Knob is the policy with its limits, and how far the head has come towards them.
type Knob struct {
	Policy   Policy
	Limits   Limits
	Bypassed int     // gangs that passed the head so far
	Waited   float64 // seconds for which the head has waited for room
}

// Head is the first gang that waits for room.
type Head struct {
	Gang *planner.Gang
	Wait reason.Reason

	start   float64           // seconds until it fits; infinite where no predicted end makes room for it
	shadow  *planner.Snapshot // the cluster at that instant (Easy)
	outside []bool            // the nodes that it could not use (Pool)
	policy  Policy
	closed  bool // a limit is reached
}

// NewHead works out what the head is promised. ends says in how many seconds each job that holds room gives it back.
func NewHead(s *planner.Snapshot, gang *planner.Gang, wait reason.Reason, knob Knob, ends map[identity.Key]float64) *Head {
	h := &Head{Gang: gang, Wait: wait, start: math.Inf(1), policy: knob.Policy}
	h.closed = knob.Limits.reached(knob.Bypassed, knob.Waited)
	switch {
	case h.closed:
	case knob.Policy == Pool:
		h.outside = planner.Unusable(s, gang, wait.Missing)
	case knob.Policy == Easy:
		h.promise(s.Copy(), ends)
	}
	return h
}

// promise lets the jobs end one after the other until the head fits.
func (h *Head) promise(shadow *planner.Snapshot, ends map[identity.Key]float64) {
	jobs := slices.SortedFunc(maps.Keys(ends), func(a, b identity.Key) int {
		return cmp.Or(cmp.Compare(ends[a], ends[b]), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Job, b.Job))
	})
	start := 0.0
	for i := 0; ; i++ {
		if planner.FitsMissing(shadow, h.Gang, h.Wait.Missing) {
			h.start, h.shadow = start, shadow
			return
		}
		if i == len(jobs) {
			return
		}
		shadow.GiveBack(jobs[i])
		start = ends[jobs[i]]
	}
}

// Start is in how many seconds the head can start by the predictions; infinite where they promise nothing.
func (h *Head) Start() float64 { return h.start }

// Plan is planner.PlanNeeded for a gang behind the head: the plan is carried out on the snapshot only if it does not delay the
// head, else the gang waits. A pass is remembered: its room is gone from what the head was promised.
func (h *Head) Plan(s *planner.Snapshot, gang *planner.Gang, draining []identity.Key) planner.Plan {
	after := s.Copy()
	plan := planner.PlanNeeded(after, h.restrict(gang), draining)
	if plan.Wait == nil && h.mayPass(gang, &plan, gang.Placed(&plan)) {
		*s = *after
		return plan
	}
	if plan.Wait != nil && h.outside != nil {
		plan = planner.PlanNeeded(s.Copy(), gang, draining) // what would it be without the head?
	}
	if plan.Wait != nil {
		return plan
	}
	why := h.reserved(gang, &plan)
	for i := range plan.Nodes {
		plan.Nodes[i] = planner.NoNode
	}
	plan.Wait = &why
	return plan
}

// AddWanted is planner.AddWanted for any gang while the head waits; it adds nothing where that delayed the head.
func (h *Head) AddWanted(s *planner.Snapshot, gang *planner.Gang, plan *planner.Plan) {
	after, grown := s.Copy(), planner.Plan{Nodes: slices.Clone(plan.Nodes)}
	joining := planner.AddWanted(after, h.restrict(gang), &grown)
	if h.mayPass(gang, &grown, joining) {
		*s, *plan = *after, grown
	}
}

// restrict bars a gang from the head's nodes.
func (h *Head) restrict(gang *planner.Gang) *planner.Gang {
	if h.outside == nil {
		return gang
	}
	restricted := *gang
	restricted.Members = slices.Clone(gang.Members)
	for i := range restricted.Members {
		member := &restricted.Members[i]
		eligible := slices.Clone(h.outside)
		for n := range eligible {
			eligible[n] = eligible[n] && (member.Eligible == nil || member.Eligible[n])
		}
		member.Eligible = eligible
	}
	return &restricted
}

// mayPass reports whether members of a gang may go to their nodes in plan without delaying the head.
func (h *Head) mayPass(gang *planner.Gang, plan *planner.Plan, members []int) bool {
	if len(members) == 0 || (h.policy == Any && !h.closed) {
		return true
	}
	if h.outside != nil {
		return !slices.ContainsFunc(members, func(m int) bool { return !h.outside[plan.Nodes[m]] })
	}
	if h.shadow == nil {
		return false
	}
	if gang.Length >= 0 && gang.Length <= h.start {
		return true
	}
	after := h.shadow.Copy()
	for _, m := range members {
		after.Take(plan.Nodes[m], gang.Members[m].Request, gang.Key)
	}
	if !planner.FitsMissing(after, h.Gang, h.Wait.Missing) {
		return false
	}
	h.shadow = after
	return true
}

func (h *Head) reserved(gang *planner.Gang, plan *planner.Plan) reason.Reason {
	start := "when others make room"
	if !math.IsInf(h.start, 1) {
		start = fmt.Sprintf("in about %.0f s", h.start)
	}
	if h.closed {
		start += ", and no more gangs may pass it"
	}
	var missing planner.Counts
	for _, m := range gang.Placed(plan) {
		rank, _ := gang.Members[m].Role.Rank()
		missing[rank]++
	}
	return reason.Reason{Token: reason.ShadowReserved, Missing: missing.Short(), Partial: missing.Total(),
		BlockedBy: []identity.Key{h.Gang.Key},
		Text:      fmt.Sprintf("fits, but job %s is ahead: it %s and starts %s", h.Gang.Key.Job, h.Wait.Text, start)}
}
