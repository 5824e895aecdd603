// Package requeue collects reasons to try pending gangs again.
package requeue

import (
	"context"
	"sync/atomic"
	"time"

	"k8s.io/client-go/util/workqueue"

	"coach.dev/scheduler-plugins/pkg/identity"
)

// Queue of gangs that may have become schedulable. Informer handlers, queueing hints and plans add to it; one goroutine handles it, so
// nothing calls kube-scheduler's own queue from inside it, and many additions of one gang are one.
type Queue struct {
	queue  workqueue.TypedDelayingInterface[identity.Key]
	events atomic.Int64
}

// Keys for events that are about no gang in particular; no namespace is empty.
var (
	pending     = identity.Key{Job: "pending"}
	nodeChanged = identity.Key{Job: "node"} // even a gang that fitted no node may fit now
	deferred    = identity.Key{Job: "deferred"}
	optional    = identity.Key{Job: "optional"}
)

// Batch is how long events are collected: they come in bursts, and one attempt after a burst is enough.
const Batch = 10 * time.Millisecond

// New empty queue.
func New() *Queue {
	return &Queue{queue: workqueue.NewTypedDelayingQueue[identity.Key]()}
}

// Gang is tried again after a time.
func (q *Queue) Gang(key identity.Key, after time.Duration) { q.queue.AddAfter(key, after) }

// CapacityFreed on some node, or a claim on capacity ended: pending gangs are tried again.
func (q *Queue) CapacityFreed() {
	q.events.Add(1)
	q.Pending()
}

// NodeChanged in a way that may add capacity: pending gangs are tried again, those that never fitted included.
func (q *Queue) NodeChanged() {
	q.events.Add(1)
	q.queue.AddAfter(nodeChanged, Batch)
}

// Events is how often capacity was freed or the nodes changed.
func (q *Queue) Events() int64 { return q.events.Load() }

// Pending gangs are tried again.
func (q *Queue) Pending() { q.queue.AddAfter(pending, Batch) }

// Deferred gangs are tried again after a time: pods were bound, or plans dropped.
func (q *Queue) Deferred(after time.Duration) { q.queue.AddAfter(deferred, max(after, Batch)) }

// Optional members are tried again: no required member is about to be planned.
func (q *Queue) Optional() { q.queue.AddAfter(optional, Batch) }

// Handler tries gangs again.
type Handler interface {
	Activate(ctx context.Context, gang identity.Key)
	PendingGangs(withNeverFits bool) []identity.Key
	GangsLackingOptional() []identity.Key
	NextDeferred() (gang identity.Key, found bool)
}

// Run until the context ends.
func (q *Queue) Run(ctx context.Context, h Handler) {
	go func() {
		<-ctx.Done()
		q.queue.ShutDown()
	}()
	for {
		key, shutdown := q.queue.Get()
		if shutdown {
			return
		}
		switch key {
		case pending, nodeChanged:
			for _, gang := range h.PendingGangs(key == nodeChanged) {
				h.Activate(ctx, gang)
			}
		case optional:
			for _, gang := range h.GangsLackingOptional() {
				h.Activate(ctx, gang)
			}
		case deferred:
			for gang, found := h.NextDeferred(); found; gang, found = h.NextDeferred() {
				h.Activate(ctx, gang)
			}
		default:
			h.Activate(ctx, key)
		}
		q.queue.Done(key)
	}
}
