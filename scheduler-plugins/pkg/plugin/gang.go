package plugin

import (
	"context"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"coach.dev/scheduler-plugins/pkg/config"
	"coach.dev/scheduler-plugins/pkg/gangstate"
	"coach.dev/scheduler-plugins/pkg/identity"
	"coach.dev/scheduler-plugins/pkg/planner"
	"coach.dev/scheduler-plugins/pkg/plugin/snapshot"
	"coach.dev/scheduler-plugins/pkg/reason"
)

// GangName is the plugin of the coach profile.
const GangName = "CoachGang"

// Gang plans a whole gang before it places its first pod.
type Gang struct {
	state  *State
	handle fwk.Handle
}

var (
	_ fwk.PreFilterPlugin   = &Gang{}
	_ fwk.FilterPlugin      = &Gang{}
	_ fwk.PostFilterPlugin  = &Gang{}
	_ fwk.ScorePlugin       = &Gang{}
	_ fwk.ReservePlugin     = &Gang{}
	_ fwk.PermitPlugin      = &Gang{}
	_ fwk.EnqueueExtensions = &Gang{}
	_ fwk.SignPlugin        = &Gang{}
)

// newGang is the factory of CoachGang.
func (s *State) newGang(ctx context.Context, object runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
	args, err := config.Decode(object)
	if err != nil {
		return nil, err
	}
	if s.configured && s.args != args {
		return nil, fmt.Errorf("profile %s gives %s other arguments than another profile: all profiles of a scheduler share their state and so their arguments", handle.ProfileName(), GangName)
	}
	s.args, s.configured = args, true // profiles of one scheduler are made one after the other, before it starts
	if err := s.start(ctx, handle, coachProfile); err != nil {
		return nil, err
	}
	return &Gang{state: s, handle: handle}, nil
}

// Name of the plugin.
func (g *Gang) Name() string { return GangName }

// reject gives the status for the pod's condition. Unresolvable: DefaultPreemption cannot help.
func reject(why reason.Reason) *fwk.Status {
	return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, why.Message())
}

// EventsToRegister lists what can end a wait for capacity. Members and Gang objects that are created are not among them: the scheduler
// calls no hints for pods that are not bound, so the requeue queue handles these.
func (g *Gang) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{
		// A deleted pod, of a gang or not, releases its capacity.
		{Event: fwk.ClusterEvent{Resource: fwk.Pod, ActionType: fwk.Delete | fwk.UpdatePodScaleDown}, QueueingHintFn: g.afterPodDeleted},
		// A new node has capacity; one that grew, lost a taint or a cordon, or got a label may be usable now.
		{Event: fwk.ClusterEvent{Resource: fwk.Node, ActionType: nodeActions}, QueueingHintFn: g.afterNodeChanged},
	}, nil
}

func (g *Gang) afterPodDeleted(_ klog.Logger, pod *v1.Pod, old, _ any) (fwk.QueueingHint, error) {
	deleted, ok := old.(*v1.Pod)
	if !ok {
		return fwk.Queue, nil
	}
	// A pod without a node held nothing. A member of the gang itself whose plan was dropped frees only what that plan had reserved:
	// to try again because of that, ahead of others, would never end.
	if member, ours, _ := identity.Of(pod.Namespace, pod.Labels); ours {
		if other, too, _ := identity.Of(deleted.Namespace, deleted.Labels); too && other.Gang == member.Gang && deleted.DeletionTimestamp == nil {
			return fwk.QueueSkip, nil
		}
	}
	if deleted.Spec.NodeName == "" {
		return fwk.QueueSkip, nil
	}
	g.state.requeue.CapacityFreed()
	return byRequeue, nil
}

func (g *Gang) afterNodeChanged(klog.Logger, *v1.Pod, any, any) (fwk.QueueingHint, error) {
	g.state.requeue.NodeChanged()
	return byRequeue, nil
}

// byRequeue leaves it to the requeue queue which gangs are tried, in queue order and without the scheduling queue's backoff. A pod that
// another plugin rejected is requeued by that plugin's hints.
const byRequeue = fwk.QueueSkip

const assignmentKey = "coach.dev/assignment"

// stateData is the assignment of a pod in its cycle state.
type stateData struct{ assignment gangstate.Assignment }

// Clone of what never changes.
func (d stateData) Clone() fwk.StateData { return d }

// PreFilter limits a pod with an assignment to its node, and plans the whole gang for a pod without one.
func (g *Gang) PreFilter(ctx context.Context, cycle fwk.CycleState, pod *v1.Pod, nodes []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	member, ours, err := identity.Of(pod.Namespace, pod.Labels)
	if ours && !g.state.hasGate.Load() {
		return nil, reject(reason.Reason{Token: reason.Misconfigured, Text: "profile " + pod.Spec.SchedulerName + " enables " + GangName + " without " + GateName})
	}
	if !ours {
		if !g.state.gangPods.ReservesCapacity() {
			return nil, fwk.NewStatus(fwk.Skip)
		}
		return nil, nil
	}
	if err != nil {
		return nil, reject(reason.Reason{Token: reason.Misconfigured, Text: err.Error()})
	}
	assignment, assigned := g.state.gangPods.AssignmentOf(string(pod.UID))
	if assigned {
		info, err := g.handle.SnapshotSharedLister().NodeInfos().Get(assignment.Node)
		switch {
		case err != nil:
			g.state.dropPlan(member.Gang, 0) // the node is gone; plan again, now
			assigned = false
		case assignment.AwaitsVictims:
			if why := g.state.awaitVictims(member.Gang, assignment, info); why != nil {
				return nil, reject(*why)
			}
			g.state.gangPods.VictimsGone(string(pod.UID))
			g.state.clearPending(member.Gang, pod)
			g.state.requeue.Gang(member.Gang, 0) // members that were tried before
		}
	}
	if !assigned {
		why := g.plan(ctx, member.Gang, pod, nodes)
		if assignment, assigned = g.state.gangPods.AssignmentOf(string(pod.UID)); !assigned {
			if why == nil {
				why = &reason.Reason{Token: reason.WaitingCapacity, Text: "optional member, and the required members of all gangs leave no capacity for it"}
			}
			return nil, reject(*why)
		}
	}
	cycle.Write(assignmentKey, stateData{assignment})
	return &fwk.PreFilterResult{NodeNames: sets.New(assignment.Node)}, nil
}

// PreFilterExtensions are not needed: a simulation by another plugin does not change a plan.
func (g *Gang) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

// Filter keeps the pod off capacity that plans of other gangs reserve.
func (g *Gang) Filter(ctx context.Context, cycle fwk.CycleState, pod *v1.Pod, info fwk.NodeInfo) *fwk.Status {
	return g.state.guard.Filter(ctx, cycle, pod, info)
}

// Score distinguishes what the thesis's score does not: an empty node and one that already holds the job.
func (g *Gang) Score(_ context.Context, _ fwk.CycleState, pod *v1.Pod, info fwk.NodeInfo) (int64, *fwk.Status) {
	member, ours, _ := identity.Of(pod.Namespace, pod.Labels)
	if !ours {
		return planner.BestScore, nil
	}
	return planner.Score(snapshot.Preference(info, member.Gang)), nil
}

// ScoreExtensions are not needed: the scores fill the range.
func (g *Gang) ScoreExtensions() fwk.ScoreExtensions { return nil }

// Reserve checks that the plan was not dropped meanwhile, as when another member was deleted.
func (g *Gang) Reserve(_ context.Context, cycle fwk.CycleState, pod *v1.Pod, node string) *fwk.Status {
	if _, err := cycle.Read(assignmentKey); err != nil {
		return nil // not ours
	}
	if !g.state.gangPods.Reserve(string(pod.UID), node) {
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "the gang's plan was dropped while this pod was placed; it is planned again")
	}
	return nil
}

// Unreserve a pod that failed. While the other members wait in Permit nothing is bound, and the whole plan is dropped; after that only
// this pod is planned again.
func (g *Gang) Unreserve(_ context.Context, cycle fwk.CycleState, pod *v1.Pod, _ string) {
	data, err := cycle.Read(assignmentKey)
	if err != nil {
		return
	}
	gang := data.(stateData).assignment.Pod.Gang
	assignment, assigned := g.state.gangPods.AssignmentOf(string(pod.UID))
	if !assigned {
		return
	}
	if assignment.Optional || assignment.Phase == gangstate.Permitted {
		g.state.gangPods.Unassign(string(pod.UID), g.state.clock.Now())
		g.state.requeue.Gang(gang, time.Second)
		g.state.requeue.CapacityFreed()
		return
	}
	g.state.dropPlan(gang, time.Second)
	g.state.requeue.CapacityFreed()
}

// Permit allows the required members of a gang together, when the last of them is reserved. They wait for members that have a node,
// never for capacity, so the wait is the time of their scheduling cycles; its limit is a safety timeout.
func (g *Gang) Permit(_ context.Context, cycle fwk.CycleState, pod *v1.Pod, _ string) (*fwk.Status, time.Duration) {
	data, err := cycle.Read(assignmentKey)
	if err != nil {
		return nil, 0
	}
	assignment := data.(stateData).assignment
	if assignment.Optional {
		g.state.gangPods.PermitOne(string(pod.UID), g.state.clock.Now())
		return nil, 0
	}
	permitted, complete := g.state.gangPods.Permit(assignment.Pod.Gang, g.state.clock.Now())
	if !complete {
		return fwk.NewStatus(fwk.Wait, string(reason.Placing)+": waits until the other members are reserved"),
			time.Duration(g.state.args.PermitSeconds * float64(time.Second))
	}
	g.state.refusalsOver(assignment.Pod.Gang)
	g.state.clearPending(assignment.Pod.Gang, pod)
	for _, uid := range permitted {
		if waiting := g.handle.GetWaitingPod(types.UID(uid)); waiting != nil {
			waiting.Allow(GangName)
		}
	}
	return nil, 0
}

// SignPod lets the scheduler batch pods of no gang while no plan reserves capacity.
func (g *Gang) SignPod(_ context.Context, pod *v1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	if _, ours, _ := identity.Of(pod.Namespace, pod.Labels); ours || g.state.gangPods.ReservesCapacity() {
		return nil, fwk.NewStatus(fwk.Unschedulable, "planned with its gang")
	}
	return nil, nil
}

// PostFilter handles a member that found no node. If it had an assignment, another plugin rejected the planned node: the gang is
// planned around it. If the gang waits for capacity, it may preempt others. In both cases DefaultPreemption must not preempt for a
// single member.
func (g *Gang) PostFilter(ctx context.Context, _ fwk.CycleState, pod *v1.Pod, statuses fwk.NodeToStatusReader) (*fwk.PostFilterResult, *fwk.Status) {
	member, ours, err := identity.Of(pod.Namespace, pod.Labels)
	if !ours || err != nil {
		return nil, fwk.NewStatus(fwk.Unschedulable)
	}
	if assignment, assigned := g.state.gangPods.AssignmentOf(string(pod.UID)); assigned && !assignment.AwaitsVictims {
		why := "another plugin"
		if status := statuses.Get(assignment.Node); status != nil {
			why = status.Plugin() + ": " + status.Message()
		}
		g.nodeRefused(member, assignment, fmt.Sprintf("was planned on node %s and refused there by %s", assignment.Node, why))
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, fmt.Sprintf("planned node %s was rejected by %s", assignment.Node, why))
	}
	g.preempt(ctx, member.Gang, pod)
	return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable)
}
