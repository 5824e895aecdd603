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

// preemption is what a case of section preempt gives beside nodes and bound.
type preemption struct {
	Running []running      `json:"running"`
	Asks    *asks          `json:"asks"`
	Policy  preempt.Policy `json:"policy"`
	S       *float64       `json:"s"`
	P       *int           `json:"P"`
}

type running struct {
	Job       string   `json:"job"`
	Pods      []pod    `json:"pods"`
	Trial     bool     `json:"trial"`
	Priority  int32    `json:"priority"`
	Grace     float64  `json:"grace"`
	Preempted int      `json:"preempted"`
	Remaining *float64 `json:"remaining"`
	Boundary  bool     `json:"boundary"`
	Lot       float64  `json:"lot"`
}

type asks struct {
	Pods     []pod `json:"pods"`
	Trial    *bool `json:"trial"`
	Priority int32 `json:"priority"`
}

func checkPreempt(t *testing.T, c kase) {
	if !slices.Contains(preempt.Policies[:], c.Policy) {
		t.Fatalf("unknown policy %q", c.Policy)
	}
	s, _ := scene(t, c, nil)
	var jobs []preempt.Running
	for _, r := range c.Running {
		job := preempt.Running{Gang: key(r.Job), Trial: r.Trial, Priority: r.Priority, Grace: r.Grace, Preempted: r.Preempted,
			Remaining: preempt.Forever, AtBoundary: r.Boundary, Lot: r.Lot, Demand: make([]int64, 3)}
		if r.Remaining != nil {
			job.Remaining = *r.Remaining
		}
		for _, p := range spread(r.Pods) {
			n := slices.Index(s.Names, p.Node)
			if n < 0 {
				t.Fatalf("job %s has a pod on node %q, which is not there", r.Job, p.Node)
			}
			s.Take(n, p.request(), job.Gang)
			for d, amount := range p.request() {
				job.Demand[d] += amount
			}
		}
		jobs = append(jobs, job)
	}
	gang := &planner.Gang{Key: key("the-one-that-asks"), Order: order.Key{Priority: c.Asks.Priority}}
	for i, p := range spread(c.Asks.Pods) {
		gang.Members = append(gang.Members, planner.Member{Role: identity.Worker, Index: i, Request: p.request(), Node: planner.NoNode})
	}
	rank, _ := identity.Worker.Rank()
	gang.Needed[rank] = len(gang.Members)
	asking := preempt.Asking{Gang: gang, Missing: gang.Needed.Short(), Trial: c.Asks.Trial == nil || *c.Asks.Trial}
	settings := preempt.Settings{Policy: c.Policy, GraceWeight: 4, MaxPreemptions: 1}
	if c.S != nil {
		settings.GraceWeight = *c.S
	}
	if c.P != nil {
		settings.MaxPreemptions = *c.P
	}

	victims := []any{}
	for _, victim := range preempt.Choose(s, asking, jobs, settings) {
		victims = append(victims, victim.Job)
	}
	if want := c.Expect["victims"]; !reflect.DeepEqual(victims, want) {
		t.Errorf("victims %v, want %v", victims, want)
	}
	scores := preempt.Scores(s, jobs, settings.GraceWeight)
	want, told := c.Expect["scores"].(map[string]any)
	if told && len(want) != len(scores) {
		t.Errorf("scores %v, want %v", scores, want)
	}
	for job, score := range want {
		if got := scores[key(job)]; math.Abs(got-score.(float64)) > 1e-9 {
			t.Errorf("score of %s: %v, want %v", job, got, score)
		}
	}
}
