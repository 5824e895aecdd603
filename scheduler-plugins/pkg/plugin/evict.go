package plugin

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	"k8s.io/kubernetes/pkg/scheduler/util"

	"coach.dev/scheduler-plugins/pkg/api"
	"coach.dev/scheduler-plugins/pkg/identity"
)

// evict all pods of a victim, with the grace period that its Gang object asks for, and count the preemption there. The
// functions that own the pods make new ones; those wait in the queue at the gang's old place, before all later gangs.
func (g *Gang) evict(ctx context.Context, victim, by identity.Key) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	logger := klog.FromContext(ctx)
	s := g.state
	s.mu.RLock()
	object := s.gangs[victim]
	s.mu.RUnlock()
	grace := int64(0)
	if object != nil {
		grace = object.Spec.GracePeriodSeconds
		if err := g.countPreemption(ctx, object); err != nil {
			logger.Error(err, "Could not count a preemption; the gang stays where it is", "gang", victim)
			return
		}
	}
	bound, _, _ := s.ledger.Members(victim)
	client := g.handle.ClientSet()
	for name, pod := range s.objectsOf(bound) {
		status := pod.Status.DeepCopy()
		if podutil.UpdatePodCondition(status, &v1.PodCondition{Type: v1.DisruptionTarget, Status: v1.ConditionTrue,
			Reason: v1.PodReasonPreemptionByScheduler, Message: "gang " + by.String() + " needs the room"}) {
			if err := util.PatchPodStatus(ctx, client, pod.Name, pod.Namespace, &pod.Status, status); err != nil && !apierrors.IsNotFound(err) {
				logger.Error(err, "Could not write why a pod is preempted", "pod", name)
			}
		}
		err := client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &grace,
			Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
		if err != nil && !apierrors.IsNotFound(err) {
			logger.Error(err, "Could not preempt a pod", "pod", name)
		}
		g.handle.EventRecorder().Eventf(pod, nil, v1.EventTypeNormal, "Preempted", "Preempting", "gang %s gives way to gang %s", victim, by)
	}
}

// countPreemption is written before the pods go: a scheduler that dies in between must not forget one.
func (g *Gang) countPreemption(ctx context.Context, object *api.Gang) error {
	if g.state.client == nil {
		return nil
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": object.ResourceVersion}, // nobody else counted meanwhile
		"status":   map[string]any{"preemptions": object.Status.Preemptions + 1},
	})
	if err != nil {
		return err
	}
	_, err = g.state.client.Resource(api.Resource).Namespace(object.Namespace).Patch(ctx, object.Name, types.MergePatchType, patch,
		metav1.PatchOptions{}, "status")
	if err != nil {
		return fmt.Errorf("status of Gang %s: %w", object.Key(), err)
	}
	return nil
}
