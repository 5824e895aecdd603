package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	"k8s.io/kubernetes/pkg/scheduler/util"

	"coach.dev/scheduler-plugins/pkg/api"
	"coach.dev/scheduler-plugins/pkg/gangstate"
	"coach.dev/scheduler-plugins/pkg/identity"
	"coach.dev/scheduler-plugins/pkg/planner"
	"coach.dev/scheduler-plugins/pkg/plugin/metrics"
	"coach.dev/scheduler-plugins/pkg/plugin/snapshot"
	"coach.dev/scheduler-plugins/pkg/preempt"
	"coach.dev/scheduler-plugins/pkg/reason"
)

// preempt best-effort gangs for a trial-and-error one that waits for capacity. The choice is tried on a snapshot first; the capacity
// of the victims is reserved for the gang by its assignments, so the victims, which go back to their place in the queue, cannot take
// it again.
func (g *Gang) preempt(ctx context.Context, key identity.Key, pod *v1.Pod) {
	s := g.state
	if s.args.Preemption == preempt.Never {
		return
	}
	v := s.view(key)
	remaining := s.remainingVictims(key)
	s.mu.RLock()
	r := s.records[key]
	waits := r != nil && r.status.Token.ClaimsCapacity() && len(remaining) == 0 && len(v.assignments) == 0
	s.mu.RUnlock()
	if !waits || v.object == nil {
		return
	}
	nodes, err := g.handle.SnapshotSharedLister().NodeInfos().List()
	if err != nil {
		return
	}
	cluster := s.withKept(s.nodes.Take(nodes, s.gangPods), key)
	gang := s.plannerGang(&v, cluster)
	for _, victim := range s.preemptedGangs() {
		cluster.Release(victim)
	}
	victims := s.victimsOf(key) // from before this scheduler restarted
	if len(victims) == 0 && r.status.Token == reason.WaitingCapacity {
		victims = preempt.Choose(cluster.Snapshot, preempt.Preemptor{Gang: gang, Missing: v.missing.Short(), TrialAndError: v.object.Spec.TrialAndError},
			s.runningGangs(cluster), preempt.Settings{Policy: s.args.Preemption, GraceWeight: s.args.GraceWeight, MaxPreemptions: s.args.MaxPreemptions})
	}
	if len(victims) == 0 {
		return
	}
	for _, victim := range victims {
		cluster.Release(victim)
	}
	plan := planner.PlanRequired(cluster.Snapshot, gang, nil)
	if plan.Pending != nil {
		return
	}
	assignments := assignmentsOf(&v, cluster, &plan, gang.Placed(&plan))
	for i := range assignments {
		assignments[i].AwaitsVictims = true
	}
	s.gangPods.Assign(assignments, s.clock.Now())
	s.mu.Lock()
	s.record(key).victims = victims
	s.mu.Unlock()
	s.setStatus(key, gang.Order, reason.Reason{Token: reason.Draining, Missing: v.missing.Short(), BlockedBy: victims,
		Text: "until " + reason.Jobs(victims) + " gave back what is draining"}, pod)
	for _, victim := range victims {
		if object := s.object(victim); object != nil && object.Status.Draining != nil {
			continue
		}
		go s.startPreemption(context.WithoutCancel(ctx), victim, key)
	}
}

// startPreemption of a victim. If it cannot be written, the plan that counts on it is dropped.
func (s *State) startPreemption(ctx context.Context, victim, preemptor identity.Key) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := s.preemption.start(ctx, victim, preemptor); err != nil {
		klog.FromContext(ctx).Error(err, "Failed to preempt a gang; it keeps running", "gang", victim)
		s.mu.Lock()
		s.record(preemptor).victims = nil
		s.mu.Unlock()
		s.dropPlan(preemptor, time.Second)
		return
	}
	metrics.PreemptedGangs.WithLabelValues(string(s.args.Preemption)).Inc()
}

// victimsOf a gang, by the status of the Gang objects.
func (s *State) victimsOf(preemptor identity.Key) []identity.Key {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var victims []identity.Key
	for victim, object := range s.gangs {
		if object.Status.Draining != nil && object.Status.Draining.Gang() == preemptor {
			victims = append(victims, victim)
		}
	}
	slices.SortFunc(victims, identity.Key.Compare)
	return victims
}

// remainingVictims lists the victims of a gang that still hold capacity; the others are forgotten.
func (s *State) remainingVictims(key identity.Key) []identity.Key {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.record(key)
	r.victims = slices.DeleteFunc(slices.Clone(r.victims), func(victim identity.Key) bool { return len(s.gangPods.RequestsOf(victim)) == 0 })
	return r.victims
}

// awaitVictims gives the reason to wait while a victim of the gang holds capacity, or while the scheduler's snapshot still counts it on
// the planned node; nil once the pod can be placed.
func (s *State) awaitVictims(key identity.Key, assignment gangstate.Assignment, info fwk.NodeInfo) *reason.Reason {
	if victims := s.remainingVictims(key); len(victims) > 0 {
		return &reason.Reason{Token: reason.Draining, BlockedBy: victims, Text: "until " + reason.Jobs(victims) + " gave back what is draining"}
	}
	for name, amount := range assignment.Pod.Requests {
		if snapshot.Free(info, name) < amount {
			s.requeue.Gang(key, 100*time.Millisecond)
			return &reason.Reason{Token: reason.Draining, Text: fmt.Sprintf("%s of node %s is still counted for deleted pods", name, assignment.Node)}
		}
	}
	return nil
}

// runningGangs are the gangs that hold capacity and are not being preempted.
func (s *State) runningGangs(cluster *snapshot.Cluster) []preempt.Running {
	now := s.clock.Now()
	var running []preempt.Running
	for _, key := range s.gangPods.Gangs() {
		object := s.object(key)
		bound, _, _ := s.gangPods.Members(key)
		if object == nil || len(bound) == 0 || object.Status.Draining != nil {
			continue
		}
		one := preempt.Running{Gang: key, TrialAndError: object.Spec.TrialAndError, Priority: bound[0].Priority,
			GracePeriod: float64(object.Spec.GracePeriodSeconds), Preempted: object.Status.Preemptions, Remaining: preempt.Forever,
			BetweenEpochs: object.Spec.BetweenEpochs, Draw: rand.Float64(), Requests: cluster.Vector(nil)}
		if end, known := object.EndsIn(now); known {
			one.Remaining = end
		}
		for _, pod := range bound {
			for d, amount := range cluster.Vector(pod.Requests) {
				one.Requests[d] += amount
			}
			one.Priority = max(one.Priority, pod.Priority)
		}
		running = append(running, one)
	}
	return running
}

// preemption carries out preemptions. All its state is in the status of the Gang objects, so a scheduler that restarts continues
// where the last one stopped:
//
//  1. The status names the preemptor and the victim's deadline; the preemption is counted in the same write.
//  2. The victim's handler ends its epoch and sets betweenEpochs. Then, or at the deadline, its pods are deleted.
//  3. When the last pod is gone, the status is cleared. If the preemptor has no pending pods any more before a pod was deleted, it is
//     cleared and the preemption not counted.
type preemption struct {
	state *State
	queue workqueue.TypedDelayingInterface[identity.Key] // of victims
}

func newPreemption(s *State) *preemption {
	return &preemption{state: s, queue: workqueue.NewTypedDelayingQueue[identity.Key]()}
}

func (p *preemption) run(ctx context.Context) {
	go func() {
		<-ctx.Done()
		p.queue.ShutDown()
	}()
	for {
		key, shutdown := p.queue.Get()
		if shutdown {
			return
		}
		if err := p.reconcile(ctx, key); err != nil {
			klog.FromContext(ctx).Error(err, "Failed to continue a preemption; it is retried", "gang", key)
			p.queue.AddAfter(key, time.Second)
		}
		p.queue.Done(key)
	}
}

// start to preempt a victim. It is written before anything is done: a scheduler that dies in between must not forget it, and the
// count protects the victim from starving.
func (p *preemption) start(ctx context.Context, victim, preemptor identity.Key) error {
	p.state.dropPlan(victim, 0) // if it was growing, it stops
	now := metav1.NewTime(p.state.clock.Now())
	return p.updateStatus(ctx, victim, func(object *api.Gang) bool {
		if object.Status.Draining != nil {
			return false
		}
		grace := time.Duration(object.Spec.GracePeriodSeconds) * time.Second
		object.Status.Preemptions++
		object.Status.Draining = &api.Draining{By: preemptor.String(), Since: now, Until: metav1.NewTime(now.Add(grace))}
		return true
	})
}

// reconcile does what is due for a victim now.
func (p *preemption) reconcile(ctx context.Context, key identity.Key) error {
	s := p.state
	object := s.object(key)
	if object == nil || object.Status.Draining == nil {
		return nil
	}
	holding := 0
	for _, requests := range s.gangPods.RequestsOf(key) {
		holding += len(requests)
	}
	bound, _, _ := s.gangPods.Members(key)
	_, preemptors, _ := s.gangPods.Members(object.Status.Draining.Gang())
	cancelled := len(preemptors) == 0 && len(bound) == holding // no pod of it was deleted yet
	if holding == 0 {
		s.startReturn(key)
	}
	if holding == 0 || cancelled {
		return p.updateStatus(ctx, key, func(object *api.Gang) bool {
			if cancelled && holding > 0 {
				object.Status.Preemptions = max(object.Status.Preemptions-1, 0)
			}
			object.Status.Draining = nil
			return true
		})
	}
	if left := object.Status.Draining.Until.Sub(s.clock.Now()); !object.Spec.BetweenEpochs && left > 0 {
		p.queue.AddAfter(key, min(left, time.Second)) // or when its object or a pod changes
		return nil
	}
	return p.deletePods(ctx, key, bound, object.Status.Draining.By)
}

// deletePods of a victim whose deadline is over. Their grace period is a second: the job had the one that it asked for, and with none
// at all the API server would forget a pod that the kubelet still runs.
func (p *preemption) deletePods(ctx context.Context, victim identity.Key, bound []gangstate.Pod, preemptor string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	s := p.state
	client := s.handle.ClientSet()
	grace := int64(1)
	var errs []error
	objects := s.podObjects(bound)
	s.keepPlace(victim, bound, objects)
	for name, pod := range objects {
		status := pod.Status.DeepCopy()
		if podutil.UpdatePodCondition(status, &v1.PodCondition{Type: v1.DisruptionTarget, Status: v1.ConditionTrue,
			Reason: v1.PodReasonPreemptionByScheduler, Message: "preempted by gang " + preemptor}) {
			if err := util.PatchPodStatus(ctx, client, pod.Name, pod.Namespace, &pod.Status, status); err != nil && !apierrors.IsNotFound(err) {
				klog.FromContext(ctx).Error(err, "Failed to write the condition of a preempted pod", "pod", name)
			}
		}
		err := client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &grace,
			Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) { // conflict: another pod of that name by now
			errs = append(errs, fmt.Errorf("pod %s: %w", name, err))
			continue
		}
		s.handle.EventRecorder().Eventf(pod, nil, v1.EventTypeNormal, "Preempted", "Preempting", "gang %s is preempted by gang %s", victim, preemptor)
	}
	return errors.Join(errs...)
}

// updateStatus of a Gang object, again if it was changed meanwhile. change reports whether there is anything to write.
func (p *preemption) updateStatus(ctx context.Context, key identity.Key, change func(*api.Gang) bool) error {
	s := p.state
	if s.client == nil { // there is no API server
		object := s.object(key)
		if object == nil {
			return nil
		}
		changed := *object
		if change(&changed) {
			s.setGang(&changed)
		}
		return nil
	}
	gangs := s.client.Resource(api.Resource).Namespace(key.Namespace)
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		stored, err := gangs.Get(ctx, key.Job, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		} else if err != nil {
			return err
		}
		object, err := api.FromObject(stored)
		if err != nil || !change(object) {
			return err
		}
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": stored.GetResourceVersion()},
			"status": map[string]any{"preemptions": object.Status.Preemptions, "draining": object.Status.Draining}})
		if err != nil {
			return err
		}
		if _, err = gangs.Patch(ctx, key.Job, types.MergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
			return fmt.Errorf("status of Gang %s: %w", key, err)
		}
		return nil
	})
}
