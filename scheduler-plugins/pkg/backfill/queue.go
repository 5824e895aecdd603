package backfill

import (
	"slices"

	"coach.dev/scheduler-plugins/pkg/identity"
	"coach.dev/scheduler-plugins/pkg/order"
	"coach.dev/scheduler-plugins/pkg/planner"
)

// Queue plans gangs on one snapshot; the result is in the order of the input. Needed members come first, gang by gang in
// queue order; wanted members come after all needed ones, so that no job grows into the room in which the next one could
// start. The snapshot takes all that is placed.
func Queue(s *planner.Snapshot, gangs []*planner.Gang, knob Knob, ends map[identity.Key]float64, draining []identity.Key) []planner.Plan {
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
				s.Take(node, gang.Members[i].Request, gang.Key)
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
		plans[i] = planner.PlanNeeded(s, gang, draining)
		if wait := plans[i].Wait; wait != nil && wait.Token.Claims() {
			head = NewHead(s, gang, *wait, knob, known)
		} else if _, stands := known[gang.Key]; wait == nil && gang.Length >= 0 && !stands {
			known[gang.Key] = gang.Length // it holds room from now on
		}
	}
	for _, i := range sequence {
		switch {
		case plans[i].Wait != nil:
		case head != nil:
			head.AddWanted(s, gangs[i], &plans[i])
		default:
			planner.AddWanted(s, gangs[i], &plans[i])
		}
	}
	return plans
}
