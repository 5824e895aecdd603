package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	"k8s.io/kubernetes/pkg/scheduler/util"

	"coach.dev/scheduler-plugins/pkg/api"
	"coach.dev/scheduler-plugins/pkg/gangstate"
	"coach.dev/scheduler-plugins/pkg/identity"
)

// drainer makes victims leave. All that it has to know is in the status of their Gang objects, so a scheduler that starts again goes
// on where the last one was:
//
//  1. The status says who needs the room and until when the victim may take its time; the preemption is counted in the same write.
//  2. The victim's handler ends its epoch and says betweenEpochs. Then, or when the time is over, its pods are deleted.
//  3. When the last is gone, the status is cleared. If nobody needs the room any more before a pod was deleted, it is cleared
//     and the preemption not counted.
type drainer struct {
	state *State
	queue workqueue.TypedDelayingInterface[identity.Key]
}

func newDrainer(s *State) *drainer {
	return &drainer{state: s, queue: workqueue.NewTypedDelayingQueue[identity.Key]()}
}

// look at a victim again.
func (d *drainer) look(key identity.Key, after time.Duration) { d.queue.AddAfter(key, after) }

func (d *drainer) run(ctx context.Context) {
	go func() {
		<-ctx.Done()
		d.queue.ShutDown()
	}()
	for {
		key, shutdown := d.queue.Get()
		if shutdown {
			return
		}
		if err := d.step(ctx, key); err != nil {
			klog.FromContext(ctx).Error(err, "Could not go on with a preemption; it is tried again", "gang", key)
			d.look(key, time.Second)
		}
		d.queue.Done(key)
	}
}

// begin to make a victim leave for another gang. It is written before anything is done: a scheduler that dies in between must not
// forget it, and the count guards the victim against starving.
func (d *drainer) begin(ctx context.Context, victim, by identity.Key) error {
	d.state.drop(ctx, d.state.handle, victim, 0) // it was growing; it does not any more
	now := metav1.NewTime(d.state.clock.Now())
	return d.change(ctx, victim, func(object *api.Gang) bool {
		if object.Status.Draining != nil {
			return false
		}
		grace := time.Duration(object.Spec.GracePeriodSeconds) * time.Second
		object.Status.Preemptions++
		object.Status.Draining = &api.Draining{By: by.String(), Since: now, Until: metav1.NewTime(now.Add(grace))}
		return true
	})
}

// step does what is due for a victim now.
func (d *drainer) step(ctx context.Context, key identity.Key) error {
	s := d.state
	object := s.object(key)
	if object == nil || object.Status.Draining == nil {
		return nil
	}
	holding := 0
	for _, amounts := range s.ledger.Holding(key) {
		holding += len(amounts)
	}
	bound, _, _ := s.ledger.Members(key)
	_, preemptors, _ := s.ledger.Members(object.Status.Draining.Gang())
	calledOff := len(preemptors) == 0 && len(bound) == holding // no pod of it was deleted yet
	if holding == 0 {
		s.left(key)
	}
	if holding == 0 || calledOff {
		return d.change(ctx, key, func(object *api.Gang) bool {
			if calledOff && holding > 0 {
				object.Status.Preemptions = max(object.Status.Preemptions-1, 0)
			}
			object.Status.Draining = nil
			return true
		})
	}
	if left := object.Status.Draining.Until.Sub(s.clock.Now()); !object.Spec.BetweenEpochs && left > 0 {
		d.look(key, min(left, time.Second)) // or when its object or a pod changes
		return nil
	}
	return d.evict(ctx, key, bound, object.Status.Draining.By)
}

// evict the pods of a victim whose time is over. Their grace period is a second: the job had the one that it asked for, and with none at
// all the API server would forget a pod that the kubelet still runs.
func (d *drainer) evict(ctx context.Context, victim identity.Key, bound []gangstate.Pod, by string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	s := d.state
	client := s.handle.ClientSet()
	grace := int64(1)
	var errs []error
	objects := s.objectsOf(bound)
	s.remember(victim, bound, objects)
	for name, pod := range objects {
		status := pod.Status.DeepCopy()
		if podutil.UpdatePodCondition(status, &v1.PodCondition{Type: v1.DisruptionTarget, Status: v1.ConditionTrue,
			Reason: v1.PodReasonPreemptionByScheduler, Message: "gang " + by + " needs the room"}) {
			if err := util.PatchPodStatus(ctx, client, pod.Name, pod.Namespace, &pod.Status, status); err != nil && !apierrors.IsNotFound(err) {
				klog.FromContext(ctx).Error(err, "Could not write why a pod is preempted", "pod", name)
			}
		}
		err := client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &grace,
			Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) { // conflict: another pod of that name by now
			errs = append(errs, fmt.Errorf("pod %s: %w", name, err))
			continue
		}
		s.handle.EventRecorder().Eventf(pod, nil, v1.EventTypeNormal, "Preempted", "Preempting", "gang %s gives way to gang %s", victim, by)
	}
	return errors.Join(errs...)
}

// change the status of a Gang object, again when somebody else changed the object meanwhile. f says whether there is anything to write.
func (d *drainer) change(ctx context.Context, key identity.Key, f func(*api.Gang) bool) error {
	s := d.state
	if s.client == nil { // there is no API server
		object := s.object(key)
		if object == nil {
			return nil
		}
		changed := *object
		if f(&changed) {
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
		if err != nil || !f(object) {
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
