// Package thesisprofile is the plugin of the coach-thesis profile.
package thesisprofile

import (
	"context"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/scheduling/corev1"
	fwk "k8s.io/kube-scheduler/framework"

	"coach.dev/scheduler-plugins/pkg/gangstate"
	"coach.dev/scheduler-plugins/pkg/identity"
	"coach.dev/scheduler-plugins/pkg/order"
	"coach.dev/scheduler-plugins/pkg/planner"
	"coach.dev/scheduler-plugins/pkg/plugin/queuesort"
	"coach.dev/scheduler-plugins/pkg/plugin/snapshot"
	"coach.dev/scheduler-plugins/pkg/reason"
	"coach.dev/scheduler-plugins/pkg/thesis"
)

// Name of the plugin.
const Name = "CoachThesis"

// Plugin implements algorithms 1 to 3 of the thesis (section 4.5) as they are printed: counts are ignored and nothing is
// reserved. It does not repeat the faults of the thesis's program: its state comes from the pods that exist, so it goes with them, and
// nothing is written while nodes are filtered in parallel.
type Plugin struct {
	gangPods *gangstate.Store
	queue    *queuesort.Plugin
	synced   func() bool

	mu      sync.Mutex
	created map[identity.Key]time.Time // of the first pod of each job
}

var (
	_ fwk.PreEnqueuePlugin  = &Plugin{}
	_ fwk.PreFilterPlugin   = &Plugin{}
	_ fwk.ScorePlugin       = &Plugin{}
	_ fwk.EnqueueExtensions = &Plugin{}
)

// New plugin; synced reports whether all pods that exist have been seen.
func New(gangPods *gangstate.Store, queue *queuesort.Plugin, synced func() bool) *Plugin {
	return &Plugin{gangPods: gangPods, queue: queue, synced: synced, created: map[identity.Key]time.Time{}}
}

// Name of the plugin.
func (p *Plugin) Name() string { return Name }

// PreEnqueue holds nothing back. It sets the pod's key in the queue: the job's time is that of its first pod, until the job has no
// pods.
func (p *Plugin) PreEnqueue(_ context.Context, pod *v1.Pod) *fwk.Status {
	member, ours, err := identity.Of(pod.Namespace, pod.Labels)
	if !ours {
		return nil
	}
	if err != nil {
		return reject(reason.Misconfigured, err.Error())
	}
	if !p.synced() {
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, reason.Starting)
	}
	p.mu.Lock()
	created, known := p.created[member.Gang]
	if !known {
		created = pod.CreationTimestamp.Time
		p.created[member.Gang] = created
	}
	p.mu.Unlock()
	p.queue.SetKey(pod, order.Key{Priority: corev1.PodPriority(pod), Since: created.UnixNano(), Name: pod.Name})
	return nil
}

// Forget a job without pods.
func (p *Plugin) Forget(gang identity.Key) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.created, gang)
}

func reject(token reason.Token, text string) *fwk.Status {
	return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, reason.Reason{Token: token, Text: text}.Message())
}

// EventsToRegister: pods that are created end the wait for types, and queueing hints do not get these events; the requeue queue handles
// them. A member that another scheduler binds is an event.
func (p *Plugin) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{{Event: fwk.ClusterEvent{Resource: fwk.Pod, ActionType: fwk.Add}}}, nil
}

// PreFilter is algorithm 2. The thesis evaluates it for each node; the answer does not depend on the node.
func (p *Plugin) PreFilter(_ context.Context, _ fwk.CycleState, pod *v1.Pod, _ []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	member, ours, err := identity.Of(pod.Namespace, pod.Labels)
	if !ours {
		return nil, fwk.NewStatus(fwk.Skip)
	}
	if err != nil {
		return nil, reject(reason.Misconfigured, err.Error())
	}
	if !p.AllTypesPresent(member) {
		return nil, reject(reason.WaitingMembers, "not all of scheduler, server and worker are created")
	}
	return nil, nil
}

// AllTypesPresent reports whether the job of a member has pods of all roles.
func (p *Plugin) AllTypesPresent(member identity.Member) bool {
	bound, pending, _ := p.gangPods.Members(member.Gang)
	var others []identity.Member
	for _, pod := range append(bound, pending...) {
		others = append(others, identity.Member{Gang: pod.Gang, Role: pod.Role})
	}
	return thesis.AllTypesPresent(member, others)
}

// PreFilterExtensions are not needed.
func (p *Plugin) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

// Score is algorithm 3.
func (p *Plugin) Score(_ context.Context, _ fwk.CycleState, pod *v1.Pod, info fwk.NodeInfo) (int64, *fwk.Status) {
	member, ours, _ := identity.Of(pod.Namespace, pod.Labels)
	if !ours {
		return planner.BestScore, nil
	}
	return planner.ThesisScore(snapshot.Preference(info, member.Gang)), nil
}

// ScoreExtensions are not needed: the thesis's program divided its scores by 100 here, and its rule with them.
func (p *Plugin) ScoreExtensions() fwk.ScoreExtensions { return nil }
