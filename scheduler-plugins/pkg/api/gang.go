// Package api is the Gang object: what a job needs, said beside its pods. The functions of a job stay warm from epoch to epoch
// and a pod's labels cannot change, so the numbers that change live here. It maps onto Kubernetes's own PodGroup: each role
// is one pod group of a Workload, needed its gang policy's minCount.
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

// Resource of the Gang objects; deploy/scheduler/gang-crd.yaml defines it.
var Resource = schema.GroupVersionResource{Group: "coach.dev", Version: "v1alpha1", Resource: "gangs"}

// Gang is the object of one job; its name is the job's.
type Gang struct {
	metav1.ObjectMeta `json:"metadata"`
	Spec              Spec   `json:"spec"`
	Status            Status `json:"status,omitempty"`
}

// Spec is written by whoever runs the job.
type Spec struct {
	Roles []Role `json:"roles"`
	// TrialAndError gangs may preempt the others, which are best-effort (FitGpp).
	TrialAndError bool `json:"trialAndError,omitempty"`
	// GracePeriodSeconds is what the gang needs to end its epoch when it is preempted.
	GracePeriodSeconds int64 `json:"gracePeriodSeconds,omitempty"`
	// PredictedSeconds is for how long the gang will hold its room if it starts now; absent where nobody can say.
	PredictedSeconds *float64 `json:"predictedSeconds,omitempty"`
	// PredictedEnd is when it will give back the room that it holds; absent where it holds none or nobody can say.
	PredictedEnd *metav1.Time `json:"predictedEnd,omitempty"`
	// BetweenEpochs is true while no epoch runs: stopping the gang then loses nothing.
	BetweenEpochs bool `json:"betweenEpochs,omitempty"`
}

// Role of a gang.
type Role struct {
	Name   identity.Role `json:"name"`
	Needed int           `json:"needed"` // members that must be there for the gang to run: all or nothing on these
	Wanted int           `json:"wanted"` // members that it would like to have, the needed ones included
}

// Status is written by the scheduler.
type Status struct {
	Preemptions int       `json:"preemptions,omitempty"` // in the gang's life
	Draining    *Draining `json:"draining,omitempty"`    // it has to give back its room
}

// Draining tells a gang that it is preempted. Its handler ends the epoch and then says betweenEpochs; at Until its pods are deleted
// in any case. It is there until the last pod is gone.
type Draining struct {
	By    string      `json:"by"` // namespace/job of the gang that needs the room
	Since metav1.Time `json:"since"`
	Until metav1.Time `json:"until"`
}

// Gang that needs the room.
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

// Counts gives the needed and the wanted members of each role, and what contradicts itself, if anything.
func (g *Gang) Counts() (needed, wanted planner.Counts, mistake string) {
	for _, role := range g.Spec.Roles {
		rank, known := role.Name.Rank()
		if !known {
			return needed, wanted, fmt.Sprintf("role %q of the Gang object is not one of %v", role.Name, identity.Roles)
		}
		if needed[rank] > 0 {
			return needed, wanted, fmt.Sprintf("the Gang object names role %s twice", role.Name)
		}
		needed[rank], wanted[rank] = role.Needed, max(role.Wanted, role.Needed)
	}
	return needed, wanted, ""
}

// Ends gives in how many seconds the gang is predicted to give its room back.
func (g *Gang) Ends(now time.Time) (float64, bool) {
	if g.Spec.PredictedEnd == nil {
		return 0, false
	}
	return max(g.Spec.PredictedEnd.Sub(now).Seconds(), 0), true
}

// Length gives for how many seconds the gang will hold its room if it starts now; negative where nobody can say.
func (g *Gang) Length() float64 {
	if g.Spec.PredictedSeconds == nil {
		return -1
	}
	return *g.Spec.PredictedSeconds
}
