package backfill

import (
	"slices"

	"coach.dev/scheduler-plugins/pkg/identity"
	"coach.dev/scheduler-plugins/pkg/order"
	"coach.dev/scheduler-plugins/pkg/planner"
)

// Queue plans gangs on one snapshot; the result is in the order of the input. Needed members come first, gang by gang in
// queue order; optional members come after all required ones, so that no job grows into the capacity in which the next one could
// start. The snapshot takes all that is placed.
func Queue(s *planner.Snapshot, gangs []*planner.Gang, settings Settings, ends map[identity.Key]float64, draining []identity.Key) []planner.Plan {
	sequence := make([]int, len(gangs))
	for i := range sequence {
		sequence[i] = i
	}
	slices.SortFunc(sequence, func(a, b int) int {
		switch x, y := &gangs[a].Order, &gangs[b].Order; {
		case order.Less(x, y):
			return -1
		case order.Less(y, x):
			return 1
		}
		return 0
	})
	for _, gang := range gangs {
		for i := range gang.Members {
			if node := gang.Members[i].Node; node != planner.NoNode {
				s.Allocate(node, gang.Members[i].Request, gang.Key)
			}
		}
	}

	plans := make([]planner.Plan, len(gangs))
	known := map[identity.Key]float64{}
	for job, end := range ends {
		known[job] = end
	}
	var head *Head
	for _, i := range sequence {
		gang := gangs[i]
		if head != nil {
			plans[i] = head.Plan(s, gang, draining)
			continue
		}
		plans[i] = planner.PlanRequired(s, gang, draining)
		if pending := plans[i].Pending; pending != nil && pending.Token.ClaimsCapacity() {
			head = NewHead(s, gang, *pending, settings, known)
		} else if _, running := known[gang.Key]; pending == nil && gang.Duration >= 0 && !running {
			known[gang.Key] = gang.Duration // it holds capacity from now on
		}
	}
	for _, i := range sequence {
		switch {
		case plans[i].Pending != nil:
		case head != nil:
			head.AddOptional(s, gangs[i], &plans[i])
		default:
			planner.AddOptional(s, gangs[i], &plans[i])
		}
	}
	return plans
}
