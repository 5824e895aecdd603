package conformance

import (
	"math"
	"reflect"
	"slices"
	"testing"

	"coach.dev/scheduler-plugins/pkg/identity"
	"coach.dev/scheduler-plugins/pkg/order"
	"coach.dev/scheduler-plugins/pkg/planner"
	"coach.dev/scheduler-plugins/pkg/preempt"
)

// preemption is what a case of section preempt gives in addition to nodes and bound.
type preemption struct {
	Running   []running      `json:"running"`
	Preemptor *preemptorCase `json:"preemptor"`
	Policy    preempt.Policy `json:"policy"`
	S         *float64       `json:"s"`
	P         *int           `json:"P"`
}

type running struct {
	Job           string   `json:"job"`
	Pods          []pod    `json:"pods"`
	TrialAndError bool     `json:"trial"`
	Priority      int32    `json:"priority"`
	GracePeriod   float64  `json:"grace"`
	Preempted     int      `json:"preempted"`
	Remaining     *float64 `json:"remaining"`
	Boundary      bool     `json:"boundary"`
	Draw          float64  `json:"lot"`
}

type preemptorCase struct {
	Pods          []pod `json:"pods"`
	TrialAndError *bool `json:"trial"`
	Priority      int32 `json:"priority"`
}

func checkPreempt(t *testing.T, c testCase) {
	if !slices.Contains(preempt.Policies[:], c.Policy) {
		t.Fatalf("unknown policy %q", c.Policy)
	}
	s, _ := buildCase(t, c, nil)
	var jobs []preempt.Running
	for _, r := range c.Running {
		job := preempt.Running{Gang: key(r.Job), TrialAndError: r.TrialAndError, Priority: r.Priority, GracePeriod: r.GracePeriod, Preempted: r.Preempted,
			Remaining: preempt.Forever, BetweenEpochs: r.Boundary, Draw: r.Draw, Requests: make([]int64, 3)}
		if r.Remaining != nil {
			job.Remaining = *r.Remaining
		}
		for _, p := range spread(r.Pods) {
			n := slices.Index(s.Names, p.Node)
			if n < 0 {
				t.Fatalf("job %s has a pod on node %q, which is not there", r.Job, p.Node)
			}
			s.Allocate(n, p.request(), job.Gang)
			for d, amount := range p.request() {
				job.Requests[d] += amount
			}
		}
		jobs = append(jobs, job)
	}
	gang := &planner.Gang{Key: key("preemptor"), Order: order.Key{Priority: c.Preemptor.Priority}}
	for i, p := range spread(c.Preemptor.Pods) {
		gang.Members = append(gang.Members, planner.Member{Role: identity.Worker, Index: i, Request: p.request(), Node: planner.NoNode})
	}
	rank, _ := identity.Worker.Rank()
	gang.Required[rank] = len(gang.Members)
	preemptor := preempt.Preemptor{Gang: gang, Missing: gang.Required.Short(), TrialAndError: c.Preemptor.TrialAndError == nil || *c.Preemptor.TrialAndError}
	settings := preempt.Settings{Policy: c.Policy, GraceWeight: 4, MaxPreemptions: 1}
	if c.S != nil {
		settings.GraceWeight = *c.S
	}
	if c.P != nil {
		settings.MaxPreemptions = *c.P
	}

	victims := []any{}
	for _, victim := range preempt.Choose(s, preemptor, jobs, settings) {
		victims = append(victims, victim.Job)
	}
	if want := c.Expect["victims"]; !reflect.DeepEqual(victims, want) {
		t.Errorf("victims %v, want %v", victims, want)
	}
	scores := preempt.Scores(s, jobs, settings.GraceWeight)
	want, given := c.Expect["scores"].(map[string]any)
	if given && len(want) != len(scores) {
		t.Errorf("scores %v, want %v", scores, want)
	}
	for job, score := range want {
		if got := scores[key(job)]; math.Abs(got-score.(float64)) > 1e-9 {
			t.Errorf("score of %s: %v, want %v", job, got, score)
		}
	}
}
