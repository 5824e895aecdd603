package plugin

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"coach.dev/scheduler-plugins/pkg/backfill"
	"coach.dev/scheduler-plugins/pkg/gangstate"
	"coach.dev/scheduler-plugins/pkg/identity"
	"coach.dev/scheduler-plugins/pkg/planner"
	"coach.dev/scheduler-plugins/pkg/plugin/metrics"
	"coach.dev/scheduler-plugins/pkg/plugin/requeue"
	"coach.dev/scheduler-plugins/pkg/plugin/snapshot"
	"coach.dev/scheduler-plugins/pkg/reason"
)

// plan a gang on the scheduler's snapshot: assignments for all members that got a node, or one reason for the whole gang.
func (g *Gang) plan(ctx context.Context, key identity.Key, pod *v1.Pod, nodes []fwk.NodeInfo) *reason.Reason {
	s := g.state
	begin := time.Now()
	defer func() { metrics.PlanSeconds.Observe(time.Since(begin).Seconds()) }()
	events := s.requeue.Events()
	v := s.view(key)
	if v.object == nil {
		return &reason.Reason{Token: reason.WaitingMembers, Text: "Gang object " + key.String() + " is not created"}
	}
	if v.isExcess(string(pod.UID)) {
		return &reason.Reason{Token: reason.Misconfigured, Text: excessPod}
	}
	if v.object.Status.Draining != nil {
		return s.holdReason(&v, string(pod.UID))
	}
	cluster := s.withKept(s.nodes.Take(nodes, s.gangPods), key)
	gang := s.plannerGang(&v, cluster)
	plansRequired := v.missing.Total() > 0

	ahead, first := s.head(key, &gang.Order)
	var head *backfill.Head
	var plan planner.Plan
	if s.keepsRoom(key) { // it had this room, and holds the rest of it for nothing until it is complete
		first = nil
	}
	if first != nil && plansRequired {
		head = s.newHead(ahead, first, cluster)
		plan = head.Plan(cluster.Snapshot, gang, s.preemptedGangs())
	} else {
		plan = planner.PlanRequired(cluster.Snapshot, gang, s.preemptedGangs())
	}
	if plan.Pending != nil {
		if plansRequired {
			*plan.Pending = withRefusal(*plan.Pending, s.retryRefused(key))
			s.setStatus(key, gang.Order, *plan.Pending, pod)
			s.requeueIfChanged(key, events)
		}
		return plan.Pending
	}
	required := gang.Placed(&plan)
	s.addOptional(key, cluster, gang, &plan)
	assignments := assignmentsOf(&v, cluster, &plan, required)
	lacksOptional := len(gang.Placed(&plan)) < len(v.schedulable)
	s.mu.Lock()
	s.record(key).lacksOptional = lacksOptional
	if head != nil && len(required) > 0 {
		s.record(ahead).bypassed++
		metrics.Bypasses.Inc()
	}
	s.mu.Unlock()
	s.gangPods.Assign(assignments, s.clock.Now())
	s.releaseKept(key)
	if lacksOptional {
		s.retryRefused(key)
		s.requeueIfChanged(key, events)
	}
	if plansRequired {
		metrics.Plans.Inc()
	}
	if plansRequired && !s.stillRefused(key) {
		s.setStatus(key, gang.Order, reason.Reason{Token: reason.Placing, Missing: v.missing.Short(),
			Text: fmt.Sprintf("%d members planned, %d bound", len(assignments), len(v.bound))}, pod)
	} else {
		s.limiter.Done(key)
	}
	var siblings []gangstate.Pod
	for _, assignment := range assignments {
		if assignment.Pod.UID != string(pod.UID) {
			siblings = append(siblings, assignment.Pod)
		}
	}
	if len(siblings) > 0 {
		g.handle.Activate(klog.FromContext(ctx), s.podObjects(siblings))
	}
	return nil
}

// requeueIfChanged tries a gang again that got no plan, if there were events meanwhile: when they were handled, it did not wait yet.
func (s *State) requeueIfChanged(key identity.Key, events int64) {
	if s.requeue.Events() != events {
		s.requeue.Gang(key, requeue.Batch)
	}
}

// newHead of the queue, on the snapshot of a gang behind it.
func (s *State) newHead(key identity.Key, r *record, cluster *snapshot.Cluster) *backfill.Head {
	v, pending := s.view(key), r.status
	if r.returning != nil && !pending.Token.ClaimsCapacity() {
		v.addReturning(r.returning)
		pending = v.returningReason()
	}
	var ends map[identity.Key]float64
	if s.args.Backfill == backfill.Easy {
		ends = s.predictedEnds()
	}
	return backfill.NewHead(cluster.Snapshot, s.plannerGang(&v, cluster), pending, s.backfillSettings(r), ends)
}

// addOptional places members beyond the required ones, unless other gangs are about to be planned: required members come first.
func (s *State) addOptional(key identity.Key, cluster *snapshot.Cluster, gang *planner.Gang, plan *planner.Plan) {
	if s.limiter.Others(key) {
		return
	}
	if waiting, first := s.head(key, nil); first != nil {
		s.newHead(waiting, first, cluster).AddOptional(cluster.Snapshot, gang, plan)
		return
	}
	planner.AddOptional(cluster.Snapshot, gang, plan)
}

// assignmentsOf a plan. The pending pods of a view and the members of its gang have one order: assigned ones first, then the schedulable.
func assignmentsOf(v *view, cluster *snapshot.Cluster, plan *planner.Plan, required []int) []gangstate.Assignment {
	offset := len(plan.Nodes) - len(v.schedulable)
	var assignments []gangstate.Assignment
	for i, pod := range v.schedulable {
		if node := plan.Nodes[offset+i]; node != planner.NoNode {
			assignments = append(assignments, gangstate.Assignment{Pod: pod, Node: cluster.Names[node], Optional: !slices.Contains(required, offset+i)})
		}
	}
	return assignments
}

// plannerGang is the gang of a view on the nodes of a snapshot.
func (s *State) plannerGang(v *view, cluster *snapshot.Cluster) *planner.Gang {
	g := v.gang()
	g.Order = s.order(v)
	if v.object != nil {
		g.Duration = v.object.Duration()
	}
	var bound []planner.Member
	for i, pod := range v.bound {
		if node, found := cluster.Node(pod.Node); found {
			g.Bound[i].Node, g.Bound[i].Request = node, cluster.Vector(pod.Requests)
			bound = append(bound, g.Bound[i])
		}
	}
	g.Bound = bound
	var limits map[identity.Role]map[string]int
	s.mu.RLock()
	if record := s.records[v.key]; record != nil {
		limits = record.refusals.limits(s.clock.Now())
	}
	s.mu.RUnlock()
	eligible := map[identity.Role][]bool{}
	at := 0
	for _, pod := range v.pending {
		if assignment, assigned := v.assignments[pod.UID]; assigned {
			g.Members[at].Request = cluster.Vector(pod.Requests)
			g.Members[at].Node = planner.NoNode
			if node, found := cluster.Node(assignment.Node); found {
				g.Members[at].Node = node
			}
			at++
		}
	}
	ofRole := map[identity.Role]int{}
	for _, pod := range v.schedulable {
		ofRole[pod.Role]++
	}
	place := map[identity.Role]int{}
	for _, pod := range v.schedulable {
		mask, known := eligible[pod.Role]
		if !known {
			object, err := s.pods.Pods(pod.Gang.Namespace).Get(pod.Name)
			if err != nil {
				object = v.returningPods[pod.Gang.Namespace+"/"+pod.Name]
			}
			if object != nil {
				mask = cluster.Eligible(object)
			}
			eligible[pod.Role] = mask
		}
		if nodes := limits[pod.Role]; len(nodes) > 0 {
			mask = within(nodes, cluster.Names, mask, place[pod.Role], ofRole[pod.Role])
		}
		place[pod.Role]++
		g.Members[at].Request, g.Members[at].Eligible = cluster.Vector(pod.Requests), mask
		at++
	}
	return g
}

const (
	// refusalTime is after which time a gang without a plan tries the refused nodes again. Only the plugin that refused knows what ends it:
	// a claim or a volume is released, a port comes free.
	refusalTime = 5 * time.Second
	// Of a gang so many plans are tried at once, then after a pause each: others are to be scheduled too.
	refusalsAtOnce = 5
	refusalPause   = time.Second
)

// refusals of the planned nodes of a gang by other plugins, since all its members passed them.
type refusals struct {
	nodes map[identity.Role]map[string]int // how many members each takes, 0 or more; never changed in place
	count int
	why   string    // the last one, in the words of the plugin
	ends  time.Time // when the nodes are tried again; zero: others are left
}

// add a node that takes so many members and no more, and return after which time the gang is planned again.
func (r *refusals) add(role identity.Role, node string, takes int, why string, now time.Time) time.Duration {
	all, nodes := map[identity.Role]map[string]int{}, map[string]int{}
	count := 1
	if limits := r.limits(now); limits != nil {
		maps.Copy(all, limits)
		maps.Copy(nodes, limits[role])
		count += r.count
	}
	if before, limited := nodes[node]; !limited || takes < before {
		nodes[node] = takes
	}
	all[role] = nodes
	*r = refusals{nodes: all, count: count, why: why}
	if count > refusalsAtOnce {
		return refusalPause
	}
	return 0
}

// limits are how many members of a role a node takes, where another plugin refused one.
func (r *refusals) limits(now time.Time) map[identity.Role]map[string]int {
	if !r.ends.IsZero() && !now.Before(r.ends) {
		return nil
	}
	return r.nodes
}

// within gives the nodes of the place-th of so many equal members, where some take only a number of them: a node's places go to members
// in turn, so that as many as they have room for have one. mask: the nodes that it may use otherwise; nil: all.
func within(limits map[string]int, names []string, mask []bool, place, members int) []bool {
	own := make([]bool, len(names))
	next := 0
	for i, name := range names {
		own[i] = mask == nil || mask[i]
		takes, limited := limits[name]
		if !limited || !own[i] {
			continue
		}
		own[i] = false
		for range min(takes, members) {
			own[i] = own[i] || next%members == place
			next++
		}
	}
	return own
}

// nodeRefused plans around the planned node of a pod, which another plugin refused, and drops the plan.
func (g *Gang) nodeRefused(member identity.Member, assignment gangstate.Assignment, why string) {
	s, takes := g.state, 0
	if !assignment.Optional { // the others of its plan are planned again with it
		takes = s.gangPods.ReservedOn(assignment.Node, assignment.Pod.UID)
	}
	s.mu.Lock()
	after := s.record(member.Gang).refusals.add(member.Role, assignment.Node, takes, why, s.clock.Now())
	s.mu.Unlock()
	if assignment.Optional {
		s.gangPods.Unassign(assignment.Pod.UID, s.clock.Now())
		s.requeue.Gang(member.Gang, after)
		return
	}
	s.dropPlan(member.Gang, after)
}

// retryRefused has a gang that found no other nodes tried again when the refused ones are, and returns the last refusal; or nothing.
func (s *State) retryRefused(key identity.Key) string {
	now := s.clock.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.records[key]
	if r == nil || r.refusals.limits(now) == nil {
		return ""
	}
	if r.refusals.ends.IsZero() {
		r.refusals.ends = now.Add(refusalTime)
	}
	s.requeue.Gang(key, r.refusals.ends.Sub(now))
	return r.refusals.why
}

// withRefusal is why a gang waits that other plugins refused: what no node can hold for now, it may hold later.
func withRefusal(pending reason.Reason, why string) reason.Reason {
	switch {
	case why == "":
	case pending.Token == reason.NeverFits:
		pending.Token, pending.Text = reason.WaitingCapacity, why
	case pending.Token == reason.WaitingCapacity:
		pending.Text = fmt.Sprintf("%s; it %s", pending.Text, why)
	}
	return pending
}

// stillRefused reports whether a gang waits since other plugins refused its nodes: with a new plan it does until all members are reserved.
func (s *State) stillRefused(key identity.Key) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	r := s.records[key]
	return r != nil && r.refusals.why != "" && r.status.Token == reason.WaitingCapacity
}

// refusalsOver notes that members of a gang passed all plugins.
func (s *State) refusalsOver(key identity.Key) {
	s.mu.Lock()
	if r := s.records[key]; r != nil {
		r.refusals = refusals{}
	}
	s.mu.Unlock()
}
