// Package thesis is the second of the thesis's three rules (section 4.5, algorithm 2) and what has to be remembered for the
// first. The first is package order, the third planner.ThesisScore.
package thesis

import "coach.dev/scheduler-plugins/pkg/identity"

// AllTypesPresent reports whether a pod passes the filter: its job's scheduler, server and worker types are all queued or
// scheduled, the pod itself included. Counts do not matter. Looking at the pods that exist now, instead of at a map that only
// grows, is what forgets a job's types with its pods; the thesis's plugin let every epoch after the first pass unchecked.
func AllTypesPresent(pod identity.Member, others []identity.Member) bool {
	var present [len(identity.Roles)]bool
	see := func(role identity.Role) {
		if rank, known := role.Rank(); known {
			present[rank] = true
		}
	}
	see(pod.Role)
	for _, other := range others {
		if other.Gang == pod.Gang {
			see(other.Role)
		}
	}
	for _, there := range present {
		if !there {
			return false
		}
	}
	return true
}
