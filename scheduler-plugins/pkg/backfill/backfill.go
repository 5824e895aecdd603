// Package backfill decides which gangs may start while a gang ahead in the queue waits for it, and plans several gangs in queue
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

// Policy is which gangs may pass the head, which is the first gang in queue order that waits for capacity.
type Policy string

const (
	Strict Policy = "strict" // no gang
	Pool   Policy = "pool"   // a gang that uses only nodes that the largest members of the head could not use even if they were empty
	Easy   Policy = "easy"   // a gang that ends before the head can start, or leaves it capacity at its start; without predicted ends, none
	Any    Policy = "any"    // every gang that fits: no capacity is idle, and a large gang may wait for ever
)

// Policies in the order of docs and errors.
var Policies = [...]Policy{Strict, Pool, Easy, Any}

// Limits bound how long a head can be passed; beyond either it is treated strictly. Negative: no bound.
type Limits struct {
	Bypasses int     // gangs that passed it
	Age      float64 // seconds that it has waited for capacity
}

// NoLimits bounds nothing.
var NoLimits = Limits{Bypasses: -1, Age: -1}

func (l Limits) reached(bypassed int, waited float64) bool {
	return (l.Bypasses >= 0 && bypassed >= l.Bypasses) || (l.Age >= 0 && waited >= l.Age)
}

// Settings are the policy with its limits, and how far the head has come towards them.
type Settings struct {
	Policy   Policy
	Limits   Limits
	Bypassed int     // gangs that passed the head so far
	Waited   float64 // seconds for which the head has waited for capacity
}

// Head is the first gang that waits for capacity.
type Head struct {
	Gang    *planner.Gang
	Pending reason.Reason

	start        float64           // seconds until it fits; infinite where no predicted end frees enough capacity for it
	shadow       *planner.Snapshot // the cluster at that instant (Easy)
	unusable     []bool            // the nodes that it could not use (Pool)
	policy       Policy
	limitReached bool // a limit is reached
}

// NewHead computes when and where the head can start. ends says in how many seconds each job that holds capacity releases it.
func NewHead(s *planner.Snapshot, gang *planner.Gang, pending reason.Reason, settings Settings, ends map[identity.Key]float64) *Head {
	h := &Head{Gang: gang, Pending: pending, start: math.Inf(1), policy: settings.Policy}
	h.limitReached = settings.Limits.reached(settings.Bypassed, settings.Waited)
	switch {
	case h.limitReached:
	case settings.Policy == Pool:
		h.unusable = planner.Unusable(s, gang, pending.Missing)
	case settings.Policy == Easy:
		h.computeStart(s.Copy(), ends)
	}
	return h
}

// computeStart lets the jobs end one after the other until the head fits.
func (h *Head) computeStart(shadow *planner.Snapshot, ends map[identity.Key]float64) {
	jobs := slices.SortedFunc(maps.Keys(ends), func(a, b identity.Key) int {
		return cmp.Or(cmp.Compare(ends[a], ends[b]), a.Compare(b))
	})
	start := 0.0
	for i := 0; ; i++ {
		if planner.FitsMissing(shadow, h.Gang, h.Pending.Missing) {
			h.start, h.shadow = start, shadow
			return
		}
		if i == len(jobs) {
			return
		}
		shadow.Release(jobs[i])
		start = ends[jobs[i]]
	}
}

// Start is in how many seconds the head can start by the predictions; infinite if unknown.
func (h *Head) Start() float64 { return h.start }

// Plan is planner.PlanRequired for a gang behind the head: the plan is carried out on the snapshot only if it does not delay the
// head, else the gang waits. The capacity of a gang that passes is no longer counted for the head.
func (h *Head) Plan(s *planner.Snapshot, gang *planner.Gang, draining []identity.Key) planner.Plan {
	after := s.Copy()
	plan := planner.PlanRequired(after, h.avoidHead(gang), draining)
	if plan.Pending == nil && h.canBypass(gang, &plan, gang.Placed(&plan)) {
		*s = *after
		return plan
	}
	if plan.Pending != nil && h.unusable != nil {
		plan = planner.PlanRequired(s.Copy(), gang, draining) // the reason that it had without the head
	}
	if plan.Pending != nil {
		return plan
	}
	why := h.shadowReserved(gang, &plan)
	for i := range plan.Nodes {
		plan.Nodes[i] = planner.NoNode
	}
	plan.Pending = &why
	return plan
}

// AddOptional is planner.AddOptional for any gang while the head waits; it adds nothing where that delayed the head.
func (h *Head) AddOptional(s *planner.Snapshot, gang *planner.Gang, plan *planner.Plan) {
	after, grown := s.Copy(), planner.Plan{Nodes: slices.Clone(plan.Nodes)}
	joining := planner.AddOptional(after, h.avoidHead(gang), &grown)
	if h.canBypass(gang, &grown, joining) {
		*s, *plan = *after, grown
	}
}

// avoidHead makes the nodes of the head ineligible for a gang.
func (h *Head) avoidHead(gang *planner.Gang) *planner.Gang {
	if h.unusable == nil {
		return gang
	}
	restricted := *gang
	restricted.Members = slices.Clone(gang.Members)
	for i := range restricted.Members {
		member := &restricted.Members[i]
		eligible := slices.Clone(h.unusable)
		for n := range eligible {
			eligible[n] = eligible[n] && (member.Eligible == nil || member.Eligible[n])
		}
		member.Eligible = eligible
	}
	return &restricted
}

// canBypass reports whether members of a gang may go to their nodes in plan without delaying the head.
func (h *Head) canBypass(gang *planner.Gang, plan *planner.Plan, members []int) bool {
	if len(members) == 0 || (h.policy == Any && !h.limitReached) {
		return true
	}
	if h.unusable != nil {
		return !slices.ContainsFunc(members, func(m int) bool { return !h.unusable[plan.Nodes[m]] })
	}
	if h.shadow == nil {
		return false
	}
	if gang.Duration >= 0 && gang.Duration <= h.start {
		return true
	}
	after := h.shadow.Copy()
	for _, m := range members {
		after.Allocate(plan.Nodes[m], gang.Members[m].Request, gang.Key)
	}
	if !planner.FitsMissing(after, h.Gang, h.Pending.Missing) {
		return false
	}
	h.shadow = after
	return true
}

func (h *Head) shadowReserved(gang *planner.Gang, plan *planner.Plan) reason.Reason {
	start := "when others make room"
	if !math.IsInf(h.start, 1) {
		start = fmt.Sprintf("in about %.0f s", h.start)
	}
	if h.limitReached {
		start += ", and no more gangs may pass it"
	}
	var missing planner.Counts
	for _, m := range gang.Placed(plan) {
		rank, _ := gang.Members[m].Role.Rank()
		missing[rank]++
	}
	return reason.Reason{Token: reason.ShadowReserved, Missing: missing.Short(), Partial: missing.Total(),
		BlockedBy: []identity.Key{h.Gang.Key},
		Text:      fmt.Sprintf("fits, but job %s is ahead: it %s and starts %s", h.Gang.Key.Job, h.Pending.Text, start)}
}
