package planner

import (
	"fmt"
	"slices"
	"strings"

	"coach.dev/scheduler-plugins/pkg/identity"
	"coach.dev/scheduler-plugins/pkg/reason"
)

// waitMembers says which needed members do not exist yet.
func waitMembers(gang *Gang, present, created Counts) reason.Reason {
	var missing Counts
	var parts []string
	for rank, needed := range gang.Needed {
		have := present[rank] + created[rank]
		if missing[rank] = max(needed-have, 0); missing[rank] > 0 {
			parts = append(parts, fmt.Sprintf("%d of %d %ss", have, needed, identity.Roles[rank]))
		}
	}
	return reason.Reason{Token: reason.WaitingMembers, Missing: missing.Short(), Text: strings.Join(parts, ", ") + " created"}
}

// explain says why the members in must have no places: not even without any other pod, or who has to leave first.
func explain(s *Snapshot, gang *Gang, must []int, missing Counts, packing Packing, draining []identity.Key) reason.Reason {
	why := reason.Reason{Missing: missing.Short(), Partial: packing.Places.total()}
	tell := func(token reason.Token, hindrance string, blockers []identity.Key) reason.Reason {
		why.Token, why.BlockedBy = token, blockers
		why.Text = fmt.Sprintf("needs %s, best partial fit %d, %s", gang.words(s, must), why.Partial, hindrance)
		return why
	}

	// Alone on the empty cluster the needed members that stand already could stand elsewhere too.
	alone := allNeeded(gang, must, missing)
	if packing := Pack(s.Without(), gang.Key, alone.groups(alone.all())); !packing.Complete && packing.Exhaustive {
		return tell(reason.NeverFits, "and the largest node has "+s.Words(s.largest), nil)
	}

	var leaving []identity.Key
	freed := s.Copy()
	for _, job := range draining {
		if job != gang.Key && s.Holding(job) {
			leaving = append(leaving, job)
			freed.GiveBack(job)
		}
	}
	slices.SortFunc(leaving, compareKeys)
	if len(leaving) > 0 && Pack(freed, gang.Key, gang.groups(must)).Complete {
		return tell(reason.Draining, "until "+reason.Jobs(leaving)+" gave back what is draining", leaving)
	}

	jobs, strangers := inTheWay(s, gang, must)
	var who []string
	if len(jobs) > 0 {
		who = append(who, reason.Jobs(jobs))
	}
	if strangers > 0 {
		who = append(who, fmt.Sprintf("%d pods that are not ours", strangers))
	}
	hindrance := "no placement found in the time allowed"
	if len(who) > 0 {
		hindrance = "blocked by " + strings.Join(who, " and ")
	}
	return tell(reason.WaitingCapacity, hindrance, jobs)
}

// inTheWay lists the jobs, and counts the pods of nobody, on nodes that could hold a member if they were empty.
func inTheWay(s *Snapshot, gang *Gang, must []int) (jobs []identity.Key, strangers int) {
	seen := map[identity.Key]bool{gang.Key: true}
	for n := range s.Names {
		useful := slices.ContainsFunc(must, func(m int) bool {
			member := &gang.Members[m]
			return (member.Eligible == nil || member.Eligible[n]) && fits(member.Request, s.Capacity[n])
		})
		if !useful {
			continue
		}
		if s.Strangers != nil {
			strangers += s.Strangers[n]
		}
		for job := range s.Jobs[n] {
			if !seen[job] {
				seen[job] = true
				jobs = append(jobs, job)
			}
		}
	}
	slices.SortFunc(jobs, compareKeys)
	return jobs, strangers
}

func compareKeys(a, b identity.Key) int {
	switch {
	case a == b:
		return 0
	case a.Less(b):
		return -1
	}
	return 1
}

// allNeeded is the gang as it would start on an empty cluster: the members to place, and beside them as many of those that
// stand or are on their way as it needs.
func allNeeded(gang *Gang, must []int, missing Counts) *Gang {
	alone := &Gang{Key: gang.Key}
	for _, m := range must {
		alone.Members = append(alone.Members, gang.Members[m])
	}
	standing := slices.Clone(gang.Settled)
	for i := range gang.Members {
		if gang.Members[i].Node != NoNode {
			standing = append(standing, gang.Members[i])
		}
	}
	slices.SortStableFunc(standing, func(a, b Member) int { return a.Index - b.Index })
	for rank, needed := range gang.Needed {
		spare := needed - missing[rank]
		for i := range standing {
			if spare > 0 && standing[i].rank() == rank {
				alone.Members = append(alone.Members, standing[i])
				spare--
			}
		}
	}
	return alone
}

func (g *Gang) all() []int {
	all := make([]int, len(g.Members))
	for i := range all {
		all[i] = i
	}
	return all
}

// words prints "1 scheduler x 0.1 cpu, 2 workers x 1 cpu 0.5 GiB".
func (g *Gang) words(s *Snapshot, members []int) string {
	var parts []string
	for _, group := range g.groups(members) {
		parts = append(parts, reason.Count{Role: group.Role, Members: group.Count}.Words()+" x "+s.Words(group.Request))
	}
	return strings.Join(parts, ", ")
}
