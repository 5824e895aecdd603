// Package metrics has the metrics of the plugins, on the scheduler's own /metrics page.
package metrics

import (
	"sync"

	basemetrics "k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

const subsystem = "coach"

var (
	StatusChanges = basemetrics.NewCounterVec(&basemetrics.CounterOpts{Subsystem: subsystem, Name: "gang_status_changes_total",
		Help: "Changes of a gang's scheduling status, by reason."}, []string{"reason"})
	PlanSeconds = basemetrics.NewHistogram(&basemetrics.HistogramOpts{Subsystem: subsystem, Name: "gang_plan_seconds",
		Help: "Time to plan one gang on one snapshot.", Buckets: basemetrics.ExponentialBuckets(0.0001, 2, 14)})
	Plans = basemetrics.NewCounter(&basemetrics.CounterOpts{Subsystem: subsystem, Name: "gang_plans_total",
		Help: "Plans that gave every required member of a gang a node."})
	DroppedPlans = basemetrics.NewCounter(&basemetrics.CounterOpts{Subsystem: subsystem, Name: "dropped_plans_total",
		Help: "Plans dropped before all required members were reserved."})
	Bypasses = basemetrics.NewCounter(&basemetrics.CounterOpts{Subsystem: subsystem, Name: "backfill_bypasses_total",
		Help: "Gangs that started before an earlier one that waits for capacity."})
	PreemptedGangs = basemetrics.NewCounterVec(&basemetrics.CounterOpts{Subsystem: subsystem, Name: "preempted_gangs_total",
		Help: "Gangs preempted for another one, by policy."}, []string{"policy"})
)

var registerOnce sync.Once

// Register the metrics; unbound gives the core-seconds for which capacity was reserved for pods that were not bound.
func Register(unbound func() (held, binding float64)) {
	registerOnce.Do(func() {
		legacyregistry.MustRegister(StatusChanges, PlanSeconds, Plans, DroppedPlans, Bypasses, PreemptedGangs)
		legacyregistry.CustomMustRegister(&unboundCollector{desc: basemetrics.NewDesc("coach_reserved_unbound_core_seconds_total",
			"Core-seconds of capacity reserved for pods that were not bound: held by a plan, or while the binding was in progress.",
			[]string{"phase"}, nil, basemetrics.ALPHA, ""), read: unbound})
	})
}

type unboundCollector struct {
	basemetrics.BaseStableCollector
	desc *basemetrics.Desc
	read func() (held, binding float64)
}

func (c *unboundCollector) DescribeWithStability(ch chan<- *basemetrics.Desc) { ch <- c.desc }

func (c *unboundCollector) CollectWithStability(ch chan<- basemetrics.Metric) {
	held, binding := c.read()
	ch <- basemetrics.NewLazyConstMetric(c.desc, basemetrics.CounterValue, held, "held")
	ch <- basemetrics.NewLazyConstMetric(c.desc, basemetrics.CounterValue, binding, "binding")
}
