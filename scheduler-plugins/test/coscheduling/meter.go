package main

import (
	"context"
	"maps"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	basemetrics "k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	fwk "k8s.io/kube-scheduler/framework"
)

// meter measures what neither contender tells itself: for how many core-seconds capacity is reserved for pods that are not bound yet, held
// until they may go, and then while the API server is told of the binding. It answers nothing and so changes no decision.
type meter struct {
	basemetrics.BaseStableCollector
	desc *basemetrics.Desc

	mu    sync.Mutex
	since map[types.UID]reserved
	sums  map[string]float64 // of the reservations that ended, by phase
}

type reserved struct {
	at    time.Time
	cores float64
	phase string
}

func (r *reserved) coreSeconds() float64 { return r.cores * time.Since(r.at).Seconds() }

var (
	_ fwk.ReservePlugin  = &meter{}
	_ fwk.PreBindPlugin  = &meter{}
	_ fwk.PostBindPlugin = &meter{}
)

func newMeter(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) {
	m := &meter{since: map[types.UID]reserved{}, sums: map[string]float64{"held": 0, "binding": 0}, desc: basemetrics.NewDesc("bench_reserved_unbound_core_seconds_total",
		"Core-seconds reserved for pods before they were bound.", []string{"phase"}, nil, basemetrics.ALPHA, "")}
	legacyregistry.CustomMustRegister(m)
	return m, nil
}

func (m *meter) DescribeWithStability(ch chan<- *basemetrics.Desc) { ch <- m.desc }

func (m *meter) CollectWithStability(ch chan<- basemetrics.Metric) {
	m.mu.Lock()
	defer m.mu.Unlock()
	sums := maps.Clone(m.sums)
	for _, r := range m.since {
		sums[r.phase] += r.coreSeconds()
	}
	for phase, sum := range sums {
		ch <- basemetrics.NewLazyConstMetric(m.desc, basemetrics.CounterValue, sum, phase)
	}
}

func (m *meter) Name() string { return "Meter" }

func (m *meter) Reserve(_ context.Context, _ fwk.CycleState, pod *v1.Pod, _ string) *fwk.Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := reserved{at: time.Now(), phase: "held"}
	for _, c := range pod.Spec.Containers {
		r.cores += c.Resources.Requests.Cpu().AsApproximateFloat64()
	}
	m.since[pod.UID] = r
	return nil
}

func (m *meter) Unreserve(_ context.Context, _ fwk.CycleState, pod *v1.Pod, _ string) { m.end(pod) }
func (m *meter) PostBind(_ context.Context, _ fwk.CycleState, pod *v1.Pod, _ string)  { m.end(pod) }

func (m *meter) end(pod *v1.Pod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.since[pod.UID]
	delete(m.since, pod.UID)
	if r.cores > 0 {
		m.sums[r.phase] += r.coreSeconds()
	}
}

func (m *meter) PreBindPreFlight(context.Context, fwk.CycleState, *v1.Pod, string) *fwk.Status {
	return nil
}

func (m *meter) PreBind(_ context.Context, _ fwk.CycleState, pod *v1.Pod, _ string) *fwk.Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r, known := m.since[pod.UID]; known {
		m.sums[r.phase] += r.coreSeconds()
		r.at, r.phase = time.Now(), "binding"
		m.since[pod.UID] = r
	}
	return nil
}
