package plugin

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"coach.dev/scheduler-plugins/pkg/backfill"
	"coach.dev/scheduler-plugins/pkg/gangstate"
	"coach.dev/scheduler-plugins/pkg/identity"
	"coach.dev/scheduler-plugins/pkg/planner"
	"coach.dev/scheduler-plugins/pkg/preempt"
	"coach.dev/scheduler-plugins/pkg/reason"
)

// maxFailures is how many plans in a row the stock filters may refuse before the gang has to wait for something to change.
const maxFailures = 5

// plan a gang on the scheduler's snapshot: seats for all that found a place, or a verdict for the whole gang.
func (g *Gang) plan(ctx context.Context, key identity.Key, pod *v1.Pod, nodes []fwk.NodeInfo) *reason.Reason {
	s := g.state
	begin := time.Now()
	defer func() { metrics.planning.Observe(time.Since(begin).Seconds()) }()
	news := s.wake.news.Load()
	v := s.view(key)
	if v.object == nil {
		return &reason.Reason{Token: reason.WaitingMembers, Text: "Gang object " + key.String() + " is not created"}
	}
	if slices.ContainsFunc(v.surplus, func(p gangstate.Pod) bool { return p.UID == string(pod.UID) }) {
		return &reason.Reason{Token: reason.Misconfigured, Text: "more pods of this role than the Gang object wants"}
	}
	if v.object.Status.Draining != nil {
		return s.gate(&v, string(pod.UID))
	}
	r := s.snapshot(nodes)
	gang := s.gang(&v, r)
	needs := v.missing.Total() > 0

	ahead, first := s.head(key, &gang.Order)
	var head *backfill.Head
	var plan planner.Plan
	if first != nil && needs {
		head = s.headOf(ahead, first, r)
		plan = head.Plan(r.Snapshot, gang, s.leaving())
	} else {
		plan = planner.PlanNeeded(r.Snapshot, gang, s.leaving())
	}
	if plan.Wait != nil {
		if needs {
			s.settle(key, gang.Order, *plan.Wait, pod)
			s.again(key, news)
		}
		return plan.Wait
	}
	needed := gang.Placed(&plan)
	s.addWanted(key, r, gang, &plan)
	seats := s.seats(&v, r, &plan, needed)
	s.mu.Lock()
	record := s.record(key)
	record.hungry = len(gang.Placed(&plan)) < len(v.offered)
	if head != nil && len(needed) > 0 {
		s.record(ahead).bypassed++
		metrics.bypasses.Inc()
	}
	s.mu.Unlock()
	s.ledger.Plan(seats, s.clock.Now())
	if len(gang.Placed(&plan)) < len(v.offered) {
		s.again(key, news)
	}
	if needs {
		metrics.placed.Inc()
		s.settle(key, gang.Order, reason.Reason{Token: reason.Placing, Missing: v.missing.Short(),
			Text: fmt.Sprintf("%d members planned, %d bound", len(seats), len(v.bound))}, pod)
	} else {
		s.yield(key)
	}
	var siblings []gangstate.Pod
	for _, seat := range seats {
		if seat.Pod.UID != string(pod.UID) {
			siblings = append(siblings, seat.Pod)
		}
	}
	if len(siblings) > 0 {
		g.handle.Activate(klog.FromContext(ctx), s.objectsOf(siblings))
	}
	return nil
}

// again looks at a gang that was planned in vain if there was news meanwhile: whoever was told of it did not know yet that this gang
// waits.
func (s *State) again(key identity.Key, news int64) {
	if s.wake.news.Load() != news {
		s.wake.gang(key, burst)
	}
}

// headOf builds what the head was promised, on the same snapshot.
func (s *State) headOf(key identity.Key, r *record, at *room) *backfill.Head {
	v, wait := s.view(key), r.verdict
	if r.absent != nil && !wait.Token.Claims() {
		v.recall(r.absent)
		wait = v.awaited()
	}
	var ends map[identity.Key]float64
	if s.knobs.Backfill == backfill.Easy {
		ends = s.ends()
	}
	return backfill.NewHead(at.Snapshot, s.gang(&v, at), wait, s.knob(r), ends)
}

// addWanted places members beyond the needed ones, unless other gangs are still to be planned: needed members come first.
func (s *State) addWanted(key identity.Key, r *room, gang *planner.Gang, plan *planner.Plan) {
	if s.someoneNeeds(key) {
		return
	}
	if waiting, first := s.head(key, nil); first != nil {
		s.headOf(waiting, first, r).AddWanted(r.Snapshot, gang, plan)
		return
	}
	planner.AddWanted(r.Snapshot, gang, plan)
}

// seats of a plan. The asking pods of a view and the members of its gang stand in one order: seated ones first, then the offered.
func (s *State) seats(v *view, r *room, plan *planner.Plan, needed []int) []gangstate.Seat {
	offset := len(plan.Nodes) - len(v.offered)
	var seats []gangstate.Seat
	for i, pod := range v.offered {
		if node := plan.Nodes[offset+i]; node != planner.NoNode {
			seats = append(seats, gangstate.Seat{Pod: pod, Node: r.Names[node], Wanted: !slices.Contains(needed, offset+i)})
		}
	}
	return seats
}

// PostFilter deals with a pod of ours that found no node. If it had a seat, another plugin refused the planned node: the node is
// barred for the role and the gang planned again. If the gang waits for room, others may have to give way. Either way nobody
// else is to preempt for a single member.
func (g *Gang) PostFilter(ctx context.Context, _ fwk.CycleState, pod *v1.Pod, statuses fwk.NodeToStatusReader) (*fwk.PostFilterResult, *fwk.Status) {
	member, ours, err := identity.Of(pod.Namespace, pod.Labels)
	if !ours || err != nil {
		return nil, fwk.NewStatus(fwk.Unschedulable)
	}
	if seat, seated := g.state.ledger.SeatOf(string(pod.UID)); seated && !seat.Draining {
		why := "another plugin"
		if status := statuses.Get(seat.Node); status != nil {
			why = status.Plugin() + ": " + status.Message()
		}
		g.refused(ctx, member, seat)
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, fmt.Sprintf("planned node %s was refused by %s", seat.Node, why))
	}
	g.preempt(ctx, member.Gang, pod)
	return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable)
}

// refused bars the node and drops the plan. The bars are lifted when the gang has waited in vain: what was refused may be free by then.
func (g *Gang) refused(ctx context.Context, member identity.Member, seat gangstate.Seat) {
	s := g.state
	s.mu.Lock()
	r := s.record(member.Gang)
	r.failures++
	after := time.Duration(0)
	if r.failures >= maxFailures {
		r.failures, r.barred, after = 0, nil, 5*time.Second
	} else {
		if r.barred == nil {
			r.barred = map[identity.Role]map[string]bool{}
		}
		nodes := map[string]bool{seat.Node: true}
		for node := range r.barred[member.Role] {
			nodes[node] = true
		}
		r.barred[member.Role] = nodes
	}
	s.mu.Unlock()
	if seat.Wanted {
		s.ledger.Unseat(seat.Pod.UID, s.clock.Now())
		s.wake.gang(member.Gang, after)
		return
	}
	s.drop(ctx, g.handle, member.Gang, after)
}

// stillDraining gives the wait while a victim of the gang holds room, or while the scheduler's snapshot does not show yet that it
// is gone from the planned node; nil once the pod can go.
func (s *State) stillDraining(key identity.Key, seat gangstate.Seat, info fwk.NodeInfo) *reason.Reason {
	if victims := s.victimsLeft(key); len(victims) > 0 {
		return &reason.Reason{Token: reason.Draining, BlockedBy: victims, Text: "until " + reason.Jobs(victims) + " gave back what is draining"}
	}
	for name, amount := range seat.Pod.Request {
		if freeOf(info, name) < amount {
			s.wake.gang(key, 100*time.Millisecond)
			return &reason.Reason{Token: reason.Draining, Text: fmt.Sprintf("%s of node %s is still counted for pods that left", name, seat.Node)}
		}
	}
	return nil
}

// victimsLeft lists the victims of a gang that still hold room; the others are forgotten.
func (s *State) victimsLeft(key identity.Key) []identity.Key {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.record(key)
	r.victims = slices.DeleteFunc(slices.Clone(r.victims), func(victim identity.Key) bool { return len(s.ledger.Holding(victim)) == 0 })
	return r.victims
}

// preempt makes best-effort gangs give way to a trial-and-error one that waits for room. The choice is tried on a snapshot first;
// the room that comes free is kept for the gang by its seats, so that the victims, which go back to their old place in the queue,
// cannot take it again.
func (g *Gang) preempt(ctx context.Context, key identity.Key, pod *v1.Pod) {
	s := g.state
	if s.knobs.Preemption == preempt.Never {
		return
	}
	v := s.view(key)
	left := s.victimsLeft(key)
	s.mu.RLock()
	r := s.records[key]
	waits := r != nil && r.verdict.Token.Claims() && len(left) == 0 && len(v.seats) == 0
	s.mu.RUnlock()
	if !waits || v.object == nil {
		return
	}
	nodes, err := g.handle.SnapshotSharedLister().NodeInfos().List()
	if err != nil {
		return
	}
	at := s.snapshot(nodes)
	gang := s.gang(&v, at)
	for _, victim := range s.leaving() {
		at.GiveBack(victim) // it goes anyhow
	}
	chosen := s.drainingFor(key) // before this scheduler was started again
	if len(chosen) == 0 && r.verdict.Token == reason.WaitingCapacity {
		chosen = preempt.Choose(at.Snapshot, preempt.Asking{Gang: gang, Missing: v.missing.Short(), Trial: v.object.Spec.TrialAndError}, s.running(at),
			preempt.Settings{Policy: s.knobs.Preemption, GraceWeight: s.knobs.GraceWeight, MaxPreemptions: s.knobs.MaxPreemptions})
	}
	if len(chosen) == 0 {
		return
	}
	for _, victim := range chosen {
		at.GiveBack(victim)
	}
	plan := planner.PlanNeeded(at.Snapshot, gang, nil)
	if plan.Wait != nil {
		return
	}
	seats := s.seats(&v, at, &plan, gang.Placed(&plan))
	for i := range seats {
		seats[i].Draining = true
	}
	s.ledger.Plan(seats, s.clock.Now())
	s.mu.Lock()
	s.record(key).victims = chosen
	s.mu.Unlock()
	s.settle(key, gang.Order, reason.Reason{Token: reason.Draining, Missing: v.missing.Short(), BlockedBy: chosen,
		Text: "until " + reason.Jobs(chosen) + " gave back what is draining"}, pod)
	for _, victim := range chosen {
		if object := s.object(victim); object != nil && object.Status.Draining != nil {
			continue
		}
		go s.makeLeave(context.WithoutCancel(ctx), victim, key)
	}
}

// makeLeave tells a victim to go. Where that cannot be written, the plan that counts on it is dropped.
func (s *State) makeLeave(ctx context.Context, victim, by identity.Key) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := s.drains.begin(ctx, victim, by); err != nil {
		klog.FromContext(ctx).Error(err, "Could not preempt a gang; it stays where it is", "gang", victim)
		s.mu.Lock()
		s.record(by).victims = nil
		s.mu.Unlock()
		s.drop(ctx, s.handle, by, time.Second)
		return
	}
	metrics.preempted.WithLabelValues(string(s.knobs.Preemption)).Inc()
}

// drainingFor lists the gangs that drain for another one, by what their objects say.
func (s *State) drainingFor(key identity.Key) []identity.Key {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var victims []identity.Key
	for victim, object := range s.gangs {
		if object.Status.Draining != nil && object.Status.Draining.Gang() == key {
			victims = append(victims, victim)
		}
	}
	slices.SortFunc(victims, func(a, b identity.Key) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Job, b.Job))
	})
	return victims
}

// running are the gangs that hold room.
func (s *State) running(at *room) []preempt.Running {
	now := s.clock.Now()
	var running []preempt.Running
	for _, key := range s.ledger.Gangs() {
		object := s.object(key)
		bound, _, _ := s.ledger.Members(key)
		if object == nil || len(bound) == 0 || object.Status.Draining != nil {
			continue
		}
		one := preempt.Running{Gang: key, Trial: object.Spec.TrialAndError, Priority: bound[0].Priority, Grace: float64(object.Spec.GracePeriodSeconds),
			Preempted: object.Status.Preemptions, Remaining: preempt.Forever, AtBoundary: object.Spec.BetweenEpochs, Lot: rand.Float64(),
			Demand: make([]int64, len(at.dimensions))}
		if end, known := object.Ends(now); known {
			one.Remaining = end
		}
		for _, pod := range bound {
			for d, amount := range at.vector(pod.Request) {
				one.Demand[d] += amount
			}
			one.Priority = max(one.Priority, pod.Priority)
		}
		running = append(running, one)
	}
	return running
}
