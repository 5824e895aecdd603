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

// NewGang makes the factory of the plugin.
func (s *State) NewGang(ctx context.Context, args runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
	knobs, err := config.Decode(args)
	if err != nil {
		return nil, err
	}
	if s.given && s.knobs != knobs {
		return nil, fmt.Errorf("profile %s gives %s other arguments than another profile: all profiles of a scheduler share one ledger and so one set", handle.ProfileName(), GangName)
	}
	s.knobs, s.given = knobs, true // profiles of one scheduler are made one after the other, before it starts
	if err := s.start(ctx, handle, coachProfile); err != nil {
		return nil, err
	}
	return &Gang{state: s, handle: handle}, nil
}

// Name of the plugin.
func (g *Gang) Name() string { return GangName }

// reject gives the status that stands in the pod's condition. Unresolvable: no preemption by others could mend it.
func reject(why reason.Reason) *fwk.Status {
	return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, why.Message())
}

// EventsToRegister lists what can end a wait for room. Members and Gang objects that arrive are not among them: the scheduler
// tells no hints about pods that are not bound, so the waker sees to these.
func (g *Gang) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{
		// A pod that is gone, ours or not, gave its room back.
		{Event: fwk.ClusterEvent{Resource: fwk.Pod, ActionType: fwk.Delete | fwk.UpdatePodScaleDown}, QueueingHintFn: g.afterPodLeft},
		// A new node has room; one that grew, lost a taint or a cordon, or got a label may be usable now.
		{Event: fwk.ClusterEvent{Resource: fwk.Node, ActionType: nodeActions}, QueueingHintFn: g.afterNodeChanged},
	}, nil
}

func (g *Gang) afterPodLeft(_ klog.Logger, pod *v1.Pod, old, _ any) (fwk.QueueingHint, error) {
	left, ok := old.(*v1.Pod)
	if !ok {
		return fwk.Queue, nil
	}
	// A pod that never had a node held nothing. One of the gang's own that was called back frees only what its plan had taken:
	// to try again because of that, ahead of others, would go on for ever.
	if member, ours, _ := identity.Of(pod.Namespace, pod.Labels); ours {
		if other, too, _ := identity.Of(left.Namespace, left.Labels); too && other.Gang == member.Gang && left.DeletionTimestamp == nil {
			return fwk.QueueSkip, nil
		}
	}
	if left.Spec.NodeName == "" {
		return fwk.QueueSkip, nil
	}
	g.state.wake.room()
	return inTurn, nil
}

func (g *Gang) afterNodeChanged(klog.Logger, *v1.Pod, any, any) (fwk.QueueingHint, error) {
	g.state.wake.node()
	return inTurn, nil
}

// inTurn leaves it to the waker which gangs go first, and at once, without the queue's backoff. Who waits for anything else than
// the room of this plugin is woken by the plugin that turned it away.
const inTurn = fwk.QueueSkip

const planKey = "coach.dev/planned"

// planned is in the cycle state of a pod that has a seat.
type planned struct{ seat gangstate.Seat }

// Clone of what never changes.
func (p planned) Clone() fwk.StateData { return p }

// PreFilter sends a pod with a seat to its node, and plans the whole gang for one without.
func (g *Gang) PreFilter(ctx context.Context, cycle fwk.CycleState, pod *v1.Pod, nodes []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	member, ours, err := identity.Of(pod.Namespace, pod.Labels)
	if ours && !g.state.gated.Load() {
		return nil, reject(reason.Reason{Token: reason.Misconfigured, Text: "profile " + pod.Spec.SchedulerName + " enables " + GangName + " without " + GateName})
	}
	if !ours {
		if !g.state.ledger.KeepsAny() {
			return nil, fwk.NewStatus(fwk.Skip)
		}
		return nil, nil
	}
	if err != nil {
		return nil, reject(reason.Reason{Token: reason.Misconfigured, Text: err.Error()})
	}
	seat, seated := g.state.ledger.SeatOf(string(pod.UID))
	if seated {
		info, err := g.handle.SnapshotSharedLister().NodeInfos().Get(seat.Node)
		switch {
		case err != nil:
			g.state.drop(ctx, g.handle, member.Gang, 0) // the node is lost; plan again, now
			seated = false
		case seat.Draining:
			if why := g.state.stillDraining(member.Gang, seat, info); why != nil {
				return nil, reject(*why)
			}
			g.state.ledger.Arrived(string(pod.UID))
			g.state.settled(member.Gang, pod)
			g.state.wake.gang(member.Gang, 0) // siblings that came too early
		}
	}
	if !seated {
		why := g.plan(ctx, member.Gang, pod, nodes)
		if seat, seated = g.state.ledger.SeatOf(string(pod.UID)); !seated {
			if why == nil {
				why = &reason.Reason{Token: reason.WaitingCapacity, Text: "wanted, no room beside the needed members of all gangs"}
			}
			return nil, reject(*why)
		}
	}
	cycle.Write(planKey, planned{seat})
	return &fwk.PreFilterResult{NodeNames: sets.New(seat.Node)}, nil
}

// PreFilterExtensions are not needed: a what-if of another plugin does not change a plan.
func (g *Gang) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

// Filter keeps the room of other gangs' plans.
func (g *Gang) Filter(_ context.Context, _ fwk.CycleState, pod *v1.Pod, info fwk.NodeInfo) *fwk.Status {
	return g.state.keepRoom(pod, info)
}

// Score tells apart what the thesis's score cannot: an empty node and one that already holds the job.
func (g *Gang) Score(_ context.Context, _ fwk.CycleState, pod *v1.Pod, info fwk.NodeInfo) (int64, *fwk.Status) {
	member, ours, _ := identity.Of(pod.Namespace, pod.Labels)
	if !ours {
		return planner.BestScore, nil
	}
	return planner.Score(g.state.standingOn(info, member.Gang)), nil
}

// ScoreExtensions are not needed: the scores fill the range.
func (g *Gang) ScoreExtensions() fwk.ScoreExtensions { return nil }

// standingOn a node, from the pods that the scheduler counts there: bound ones and those on their way.
func (s *State) standingOn(info fwk.NodeInfo, gang identity.Key) planner.Standing {
	own, others := false, false
	for _, pod := range info.GetPods() {
		member, ours, _ := identity.Of(pod.GetPod().Namespace, pod.GetPod().Labels)
		own = own || (ours && member.Gang == gang)
		others = others || (ours && member.Gang != gang)
	}
	return planner.Stand(own, others)
}

// Reserve checks that the plan still stands: a sibling that was deleted meanwhile has voided it.
func (g *Gang) Reserve(_ context.Context, cycle fwk.CycleState, pod *v1.Pod, node string) *fwk.Status {
	if _, err := cycle.Read(planKey); err != nil {
		return nil // not ours
	}
	if !g.state.ledger.Reserve(string(pod.UID), node) {
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "the gang's plan was dropped while this pod was placed; it is planned again")
	}
	return nil
}

// Unreserve a pod that could not go on. While its siblings still wait nothing is bound, and the whole plan goes; after that only
// this pod is planned again.
func (g *Gang) Unreserve(ctx context.Context, cycle fwk.CycleState, pod *v1.Pod, _ string) {
	data, err := cycle.Read(planKey)
	if err != nil {
		return
	}
	gang := data.(planned).seat.Pod.Gang
	seat, seated := g.state.ledger.SeatOf(string(pod.UID))
	if !seated {
		return
	}
	if seat.Wanted || seat.State == gangstate.Released {
		g.state.ledger.Unseat(string(pod.UID), g.state.clock.Now())
		g.state.wake.gang(gang, time.Second)
		g.state.wake.room()
		return
	}
	g.state.drop(ctx, g.handle, gang, time.Second)
	g.state.wake.room()
}

// Permit lets the needed members of a gang go together, when the last of them is reserved. They wait for siblings that have a
// place, never for room, so the wait is the time of their scheduling cycles; its limit is a fuse.
func (g *Gang) Permit(_ context.Context, cycle fwk.CycleState, pod *v1.Pod, _ string) (*fwk.Status, time.Duration) {
	data, err := cycle.Read(planKey)
	if err != nil {
		return nil, 0
	}
	seat := data.(planned).seat
	if seat.Wanted {
		g.state.ledger.ReleaseOne(string(pod.UID), g.state.clock.Now())
		return nil, 0
	}
	released, complete := g.state.ledger.Release(seat.Pod.Gang, g.state.clock.Now())
	if !complete {
		return fwk.NewStatus(fwk.Wait, string(reason.Placing)+": waits for its siblings to be reserved"),
			time.Duration(g.state.knobs.PermitSeconds * float64(time.Second))
	}
	for _, uid := range released {
		if waiting := g.handle.GetWaitingPod(types.UID(uid)); waiting != nil {
			waiting.Allow(GangName)
		}
	}
	return nil, 0
}

// SignPod lets the scheduler batch pods that are not ours while no plan keeps room from them.
func (g *Gang) SignPod(_ context.Context, pod *v1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	if _, ours, _ := identity.Of(pod.Namespace, pod.Labels); ours || g.state.ledger.KeepsAny() {
		return nil, fwk.NewStatus(fwk.Unschedulable, "planned with its gang")
	}
	return nil, nil
}
