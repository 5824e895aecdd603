// Package config holds the arguments of the plugins, as under pluginConfig in a KubeSchedulerConfiguration.
package config

import (
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"coach.dev/scheduler-plugins/pkg/backfill"
	"coach.dev/scheduler-plugins/pkg/preempt"
)

// Gang holds the arguments of the plugin CoachGang.
type Gang struct {
	// Backfill is which gangs may pass the first gang that waits for capacity: strict, pool, easy or any.
	Backfill backfill.Policy `json:"backfill"`
	// MaxBypasses is how many gangs may pass one head; -1 for any number.
	MaxBypasses int `json:"maxBypasses"`
	// MaxHeadSeconds is for how long a head can be passed; -1 for ever.
	MaxHeadSeconds float64 `json:"maxHeadSeconds"`
	// Preemption is which best-effort gangs are preempted for a trial-and-error one: never, fitgpp, lrtp or random.
	Preemption preempt.Policy `json:"preemption"`
	// GraceWeight is FitGpp's s: the weight of the grace period relative to the size.
	GraceWeight float64 `json:"graceWeight"`
	// MaxPreemptions is FitGpp's P: how often one gang may be preempted at all.
	MaxPreemptions int `json:"maxPreemptions"`
	// ReturnSeconds is for how long a preempted gang keeps its place in the queue although its pods are not recreated; 0: not at all.
	ReturnSeconds float64 `json:"returnSeconds"`
	// KeepSeconds is for how long no other gang gets the room of a required member that a running gang has lost; 0: not at all.
	KeepSeconds float64 `json:"keepSeconds"`
	// PermitSeconds is how long a planned member waits for the other members before the plan is dropped. A safety timeout: they take milliseconds.
	PermitSeconds float64 `json:"permitSeconds"`
	// ResyncSeconds is how often pending gangs are tried again without an event.
	ResyncSeconds float64 `json:"resyncSeconds"`
	// DebugAddress serves /debug/gangs; empty for none.
	DebugAddress string `json:"debugAddress"`
}

// Default arguments: the paper's s and P, no preemption unless asked for.
func Default() Gang {
	return Gang{Backfill: backfill.Strict, MaxBypasses: 10, MaxHeadSeconds: 600, Preemption: preempt.Never, GraceWeight: 4, MaxPreemptions: 1,
		ReturnSeconds: 30, KeepSeconds: 30, PermitSeconds: 30, ResyncSeconds: 30, DebugAddress: "127.0.0.1:10269"}
}

// Decode the arguments that the scheduler hands to a plugin's factory. What is not given has its default; an unknown one is
// an error, and so is every value out of range, all of them at once.
func Decode(object runtime.Object) (Gang, error) {
	args := Default()
	switch given := object.(type) {
	case nil:
	case *runtime.Unknown:
		if err := yaml.UnmarshalStrict(given.Raw, &args); err != nil {
			return Gang{}, fmt.Errorf("arguments of CoachGang: %w", err)
		}
	default:
		return Gang{}, fmt.Errorf("arguments of CoachGang: a %T cannot be read", object)
	}
	return args, args.Validate()
}

// Validate reports every argument that is out of range.
func (g Gang) Validate() error {
	var problems []error
	check := func(ok bool, format string, values ...any) {
		if !ok {
			problems = append(problems, fmt.Errorf(format, values...))
		}
	}
	check(slices.Contains(backfill.Policies[:], g.Backfill), "backfill is %q, not one of %v", g.Backfill, backfill.Policies)
	check(slices.Contains(preempt.Policies[:], g.Preemption), "preemption is %q, not one of %v", g.Preemption, preempt.Policies)
	check(g.MaxBypasses >= -1, "maxBypasses is %d, below -1", g.MaxBypasses)
	check(g.MaxHeadSeconds == -1 || g.MaxHeadSeconds >= 0, "maxHeadSeconds is %v: neither -1 nor at least 0", g.MaxHeadSeconds)
	check(g.GraceWeight >= 0, "graceWeight is %v, below 0", g.GraceWeight)
	check(g.MaxPreemptions >= 0, "maxPreemptions is %d, below 0", g.MaxPreemptions)
	check(g.ReturnSeconds >= 0, "returnSeconds is %v, below 0", g.ReturnSeconds)
	check(g.KeepSeconds >= 0, "keepSeconds is %v, below 0", g.KeepSeconds)
	check(g.PermitSeconds > 0, "permitSeconds is %v, not above 0", g.PermitSeconds)
	check(g.ResyncSeconds > 0, "resyncSeconds is %v, not above 0", g.ResyncSeconds)
	if len(problems) > 0 {
		return fmt.Errorf("arguments of CoachGang: %w", errors.Join(problems...))
	}
	return nil
}

// Limits of backfilling.
func (g Gang) Limits() backfill.Limits {
	return backfill.Limits{Bypasses: g.MaxBypasses, Age: g.MaxHeadSeconds}
}
