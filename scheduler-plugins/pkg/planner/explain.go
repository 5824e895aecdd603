package planner

import (
	"fmt"
	"slices"
	"strings"

	"coach.dev/scheduler-plugins/pkg/identity"
	"coach.dev/scheduler-plugins/pkg/reason"
)

// pendingMembers says which required members do not exist yet.
func pendingMembers(gang *Gang, present, created Counts) reason.Reason {
	var missing Counts
	var parts []string
	for rank, required := range gang.Required {
		have := present[rank] + created[rank]
		if missing[rank] = max(required-have, 0); missing[rank] > 0 {
			parts = append(parts, fmt.Sprintf("%d of %d %ss", have, required, identity.Roles[rank]))
		}
	}
	return reason.Reason{Token: reason.WaitingMembers, Missing: missing.Short(), Text: strings.Join(parts, ", ") + " created"}
}

// explain says why the unplaced members have no nodes: they do not fit the empty cluster, or other pods hold the capacity.
func explain(s *Snapshot, gang *Gang, unplaced []int, missing Counts, packing Packing, draining []identity.Key) reason.Reason {
	why := reason.Reason{Missing: missing.Short(), Partial: packing.Placement.total()}
	lacking := lackingDevices(s, gang, unplaced)
	pending := func(token reason.Token, obstacle string, blockers []identity.Key) reason.Reason {
		why.Token, why.BlockedBy = token, blockers
		why.Text = fmt.Sprintf("%sneeds %s, best partial fit %d, %s", lacking, gang.words(s, unplaced), why.Partial, obstacle)
		return why
	}

	// On the empty cluster the required members that have nodes could have others too.
	alone := allRequired(gang, unplaced, missing)
	if packing := Pack(s.Without(), gang.Key, alone.groups(alone.all())); !packing.Complete && packing.Exhaustive {
		return pending(reason.NeverFits, "and the largest node has "+s.Format(s.largest), nil)
	}

	var leaving []identity.Key
	freed := s.Copy()
	for _, job := range draining {
		if job != gang.Key && s.UsesAny(job) {
			leaving = append(leaving, job)
			freed.Release(job)
		}
	}
	slices.SortFunc(leaving, identity.Key.Compare)
	if len(leaving) > 0 && Pack(freed, gang.Key, gang.groups(unplaced)).Complete {
		return pending(reason.Draining, "until "+reason.Jobs(leaving)+" gave back what is draining", leaving)
	}

	jobs, otherPods := blockers(s, gang, unplaced)
	var who []string
	if len(jobs) > 0 {
		who = append(who, reason.Jobs(jobs))
	}
	if otherPods > 0 {
		who = append(who, fmt.Sprintf("%d pods that are not ours", otherPods))
	}
	obstacle := "no placement found in the time allowed"
	if len(who) > 0 {
		obstacle = "blocked by " + strings.Join(who, " and ")
	}
	return pending(reason.WaitingCapacity, obstacle, jobs)
}

// lackingDevices prints "5 GPUs needed, 4 free: ", where all nodes that the members may use together have too few free; else nothing.
func lackingDevices(s *Snapshot, gang *Gang, unplaced []int) string {
	for d, unit := range s.Devices {
		needed, free := int64(0), int64(0)
		for _, m := range unplaced {
			needed += gang.Members[m].Request[d]
		}
		for n := range s.Names {
			usable := slices.ContainsFunc(unplaced, func(m int) bool {
				member := &gang.Members[m]
				return member.Request[d] > 0 && (member.Eligible == nil || member.Eligible[n])
			})
			if usable {
				free += max(s.Free[n][d], 0)
			}
		}
		if unit == "" || needed <= free {
			continue
		}
		if unit == "GPU" && needed > 1 {
			unit = "GPUs"
		}
		return fmt.Sprintf("%d %s needed, %d free: ", needed, unit, free)
	}
	return ""
}

// blockers lists the jobs, and counts the pods of no job, on nodes that could hold a member if they were empty.
func blockers(s *Snapshot, gang *Gang, unplaced []int) (jobs []identity.Key, otherPods int) {
	seen := map[identity.Key]bool{gang.Key: true}
	for n := range s.Names {
		useful := slices.ContainsFunc(unplaced, func(m int) bool {
			member := &gang.Members[m]
			return (member.Eligible == nil || member.Eligible[n]) && fits(member.Request, s.Capacity[n])
		})
		if !useful {
			continue
		}
		if s.OtherPods != nil {
			otherPods += s.OtherPods[n]
		}
		for job := range s.Jobs[n] {
			if !seen[job] {
				seen[job] = true
				jobs = append(jobs, job)
			}
		}
	}
	slices.SortFunc(jobs, identity.Key.Compare)
	return jobs, otherPods
}

// allRequired is the gang as it would start on an empty cluster: the unplaced members, and as many of those that are bound or assigned
// as it requires in addition.
func allRequired(gang *Gang, unplaced []int, missing Counts) *Gang {
	alone := &Gang{Key: gang.Key}
	for _, m := range unplaced {
		alone.Members = append(alone.Members, gang.Members[m])
	}
	placed := slices.Clone(gang.Bound)
	for i := range gang.Members {
		if gang.Members[i].Node != NoNode {
			placed = append(placed, gang.Members[i])
		}
	}
	slices.SortStableFunc(placed, func(a, b Member) int { return a.Index - b.Index })
	for rank, required := range gang.Required {
		spare := required - missing[rank]
		for i := range placed {
			if spare > 0 && placed[i].rank() == rank {
				alone.Members = append(alone.Members, placed[i])
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
		parts = append(parts, reason.Count{Role: group.Role, Members: group.Count}.String()+" x "+s.Format(group.Request))
	}
	return strings.Join(parts, ", ")
}
