package plugin

import (
	"sync"

	basemetrics "k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

const subsystem = "coach"

// metrics of the plugins, on the scheduler's own /metrics page.
var metrics = struct {
	verdicts  *basemetrics.CounterVec
	planning  *basemetrics.Histogram
	placed    *basemetrics.Counter
	bypasses  *basemetrics.Counter
	preempted *basemetrics.CounterVec
	dropped   *basemetrics.Counter
}{
	verdicts: basemetrics.NewCounterVec(&basemetrics.CounterOpts{Subsystem: subsystem, Name: "gang_verdicts_total",
		Help: "Verdicts on gangs that changed, by reason."}, []string{"reason"}),
	planning: basemetrics.NewHistogram(&basemetrics.HistogramOpts{Subsystem: subsystem, Name: "gang_plan_seconds",
		Help: "Time to plan one gang on one snapshot.", Buckets: basemetrics.ExponentialBuckets(0.0001, 2, 14)}),
	placed: basemetrics.NewCounter(&basemetrics.CounterOpts{Subsystem: subsystem, Name: "gang_plans_total",
		Help: "Plans that gave every needed member of a gang a node."}),
	bypasses: basemetrics.NewCounter(&basemetrics.CounterOpts{Subsystem: subsystem, Name: "backfill_bypasses_total",
		Help: "Gangs that passed another one waiting for room."}),
	preempted: basemetrics.NewCounterVec(&basemetrics.CounterOpts{Subsystem: subsystem, Name: "preempted_gangs_total",
		Help: "Gangs that gave way to another one, by policy."}, []string{"policy"}),
	dropped: basemetrics.NewCounter(&basemetrics.CounterOpts{Subsystem: subsystem, Name: "dropped_plans_total",
		Help: "Plans that were given up before all needed members were on their nodes."}),
}

var registerOnce sync.Once

// register the metrics; unbound gives the core-seconds for which room was taken by pods that were not bound.
func register(unbound func() (held, binding float64)) {
	registerOnce.Do(func() {
		legacyregistry.MustRegister(metrics.verdicts, metrics.planning, metrics.placed, metrics.bypasses, metrics.preempted, metrics.dropped)
		legacyregistry.CustomMustRegister(&unboundCollector{desc: basemetrics.NewDesc("coach_reserved_unbound_core_seconds_total",
			"Core-seconds of room taken by pods that were not bound: held for the plan, or while the API server was told of the binding.",
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
