package plugin

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	fwk "k8s.io/kube-scheduler/framework"

	"coach.dev/scheduler-plugins/pkg/gangstate"
	"coach.dev/scheduler-plugins/pkg/identity"
	"coach.dev/scheduler-plugins/pkg/order"
	"coach.dev/scheduler-plugins/pkg/planner"
	"coach.dev/scheduler-plugins/pkg/reason"
	"coach.dev/scheduler-plugins/pkg/thesis"
)

// ThesisName is the plugin of the coach-thesis profile.
const ThesisName = "CoachThesis"

// Thesis carries out algorithms 1 to 3 of the thesis (section 4.5) as they are printed: counts are ignored and nothing is
// reserved. What it does not repeat are the faults of the thesis's program: state is read from the pods that exist, so it is gone
// with them, and nothing is written while nodes are filtered in parallel.
type Thesis struct{ state *State }

var (
	_ fwk.PreEnqueuePlugin  = &Thesis{}
	_ fwk.PreFilterPlugin   = &Thesis{}
	_ fwk.ScorePlugin       = &Thesis{}
	_ fwk.EnqueueExtensions = &Thesis{}
)

// NewThesis makes the factory of the plugin.
func (s *State) NewThesis(ctx context.Context, _ runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
	return &Thesis{state: s}, s.start(ctx, handle, thesisProfile)
}

// Name of the plugin.
func (p *Thesis) Name() string { return ThesisName }

// PreEnqueue holds nothing back. It freezes the pod's place in the queue: the job's time is that of the first of its pods, and is
// kept until the job has none left.
func (p *Thesis) PreEnqueue(_ context.Context, pod *v1.Pod) *fwk.Status {
	member, ours, err := identity.Of(pod.Namespace, pod.Labels)
	if !ours {
		return nil
	}
	if err != nil {
		return reject(reason.Reason{Token: reason.Misconfigured, Text: err.Error()})
	}
	s := p.state
	if !s.ready.Load() {
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, starting)
	}
	s.mu.Lock()
	since, known := s.since[member.Gang]
	if !known {
		since = pod.CreationTimestamp.Time
		s.since[member.Gang] = since
	}
	s.mu.Unlock()
	s.freeze(pod, order.Key{Priority: priority(pod), Since: since.UnixNano(), Name: pod.Name})
	return nil
}

// EventsToRegister: a filter that waits for types is ended by pods that are created, which no hint is told of; the waker sees to it.
// A member that is bound by somebody else is told.
func (p *Thesis) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{{Event: fwk.ClusterEvent{Resource: fwk.Pod, ActionType: fwk.Add}}}, nil
}

// PreFilter is algorithm 2. The thesis asks it for each node; the answer does not depend on the node, so it is asked once.
func (p *Thesis) PreFilter(_ context.Context, _ fwk.CycleState, pod *v1.Pod, _ []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	member, ours, err := identity.Of(pod.Namespace, pod.Labels)
	if !ours {
		return nil, fwk.NewStatus(fwk.Skip)
	}
	if err != nil {
		return nil, reject(reason.Reason{Token: reason.Misconfigured, Text: err.Error()})
	}
	if !p.state.typesPresent(member) {
		return nil, reject(reason.Reason{Token: reason.WaitingMembers, Text: "not all of scheduler, server and worker are created"})
	}
	return nil, nil
}

func (s *State) typesPresent(member identity.Member) bool {
	bound, asking, _ := s.ledger.Members(member.Gang)
	var others []identity.Member
	for _, list := range [][]gangstate.Pod{bound, asking} {
		for _, pod := range list {
			others = append(others, identity.Member{Gang: pod.Gang, Role: pod.Role})
		}
	}
	return thesis.AllTypesPresent(member, others)
}

// PreFilterExtensions are not needed.
func (p *Thesis) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

// Score is algorithm 3.
func (p *Thesis) Score(_ context.Context, _ fwk.CycleState, pod *v1.Pod, info fwk.NodeInfo) (int64, *fwk.Status) {
	member, ours, _ := identity.Of(pod.Namespace, pod.Labels)
	if !ours {
		return planner.BestScore, nil
	}
	return planner.ThesisScore(p.state.standingOn(info, member.Gang)), nil
}

// ScoreExtensions are not needed: the thesis's program divided its scores by 100 here, and its rule with them.
func (p *Thesis) ScoreExtensions() fwk.ScoreExtensions { return nil }
