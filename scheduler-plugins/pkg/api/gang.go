// Package api is the Gang object: what a job requires. The functions of a job stay warm from epoch to epoch
// and a pod's labels are not changed, so the numbers that change are in this object. It maps onto Kubernetes's own PodGroup: each role
// is one pod group of a Workload, required its gang policy's minCount.
package api

import (
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"coach.dev/scheduler-plugins/pkg/identity"
	"coach.dev/scheduler-plugins/pkg/planner"
)

// Resource of the Gang objects; deploy/chart/files/gang-crd.yaml defines it.
var Resource = schema.GroupVersionResource{Group: "coach.dev", Version: "v1alpha1", Resource: "gangs"}

// Gang is the object of one job; its name is the job's.
type Gang struct {
	metav1.ObjectMeta `json:"metadata"`
	Spec              Spec   `json:"spec"`
	Status            Status `json:"status,omitempty"`
}

// Spec is written by the job's controller.
type Spec struct {
	Roles []Role `json:"roles"`
	// TrialAndError gangs may preempt the others, which are best-effort (FitGpp).
	TrialAndError bool `json:"trialAndError,omitempty"`
	// GracePeriodSeconds is the time that the gang needs to end its epoch when it is preempted.
	GracePeriodSeconds int64 `json:"gracePeriodSeconds,omitempty"`
	// PredictedSeconds is for how long the gang will hold its capacity if it starts now; absent if unknown.
	PredictedSeconds *float64 `json:"predictedSeconds,omitempty"`
	// PredictedEnd is when it will release the capacity that it holds; absent if it holds none, or if unknown.
	PredictedEnd *metav1.Time `json:"predictedEnd,omitempty"`
	// BetweenEpochs is true while no epoch runs: stopping the gang then loses nothing.
	BetweenEpochs bool `json:"betweenEpochs,omitempty"`
}

// Role of a gang.
type Role struct {
	Name     identity.Role `json:"name"`
	Required int           `json:"required"` // members without which the gang does not run: all of them start together, or none
	Desired  int           `json:"desired"`  // members that it can use, the required ones included
}

// Status is written by the scheduler.
type Status struct {
	Preemptions int       `json:"preemptions,omitempty"` // since the object was created
	Draining    *Draining `json:"draining,omitempty"`    // it has to release its capacity
}

// Draining is there while a gang is preempted. Its handler ends the epoch and then sets betweenEpochs; at Until its pods are deleted
// in any case. It is set until the last pod is gone.
type Draining struct {
	By    string      `json:"by"` // namespace/job of the gang that needs the capacity
	Since metav1.Time `json:"since"`
	Until metav1.Time `json:"until"`
}

// Gang that needs the capacity.
func (d *Draining) Gang() identity.Key {
	namespace, job, _ := strings.Cut(d.By, "/")
	return identity.Key{Namespace: namespace, Job: job}
}

// FromObject reads a Gang as the API server stores it.
func FromObject(object any) (*Gang, error) {
	content, ok := object.(*unstructured.Unstructured)
	if !ok {
		return nil, fmt.Errorf("a %T is no Gang object", object)
	}
	gang := &Gang{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(content.Object, gang); err != nil {
		return nil, fmt.Errorf("gang %s/%s: %w", content.GetNamespace(), content.GetName(), err)
	}
	return gang, nil
}

// Key of the gang that the object is about.
func (g *Gang) Key() identity.Key { return identity.Key{Namespace: g.Namespace, Job: g.Name} }

// Counts gives the required and the desired members of each role, and what contradicts itself, if anything.
func (g *Gang) Counts() (required, desired planner.Counts, invalid string) {
	for _, role := range g.Spec.Roles {
		rank, known := role.Name.Rank()
		if !known {
			return required, desired, fmt.Sprintf("role %q of the Gang object is not one of %v", role.Name, identity.Roles)
		}
		if required[rank] > 0 {
			return required, desired, fmt.Sprintf("the Gang object names role %s twice", role.Name)
		}
		required[rank], desired[rank] = role.Required, max(role.Desired, role.Required)
	}
	return required, desired, ""
}

// EndsIn gives in how many seconds the gang is predicted to release its capacity.
func (g *Gang) EndsIn(now time.Time) (float64, bool) {
	if g.Spec.PredictedEnd == nil {
		return 0, false
	}
	return max(g.Spec.PredictedEnd.Sub(now).Seconds(), 0), true
}

// Duration gives for how many seconds the gang will hold its capacity if it starts now; negative if unknown.
func (g *Gang) Duration() float64 {
	if g.Spec.PredictedSeconds == nil {
		return -1
	}
	return *g.Spec.PredictedSeconds
}
