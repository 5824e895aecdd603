// Package backpressure limits how many pods are between their plan and their binding.
package backpressure

import (
	"sync"
	"time"

	"coach.dev/scheduler-plugins/pkg/gangstate"
	"coach.dev/scheduler-plugins/pkg/identity"
	"coach.dev/scheduler-plugins/pkg/order"
)

const (
	// MaxInFlight is how many pods may be between plan and binding when the next gang is planned. A scheduler plans faster than an API
	// server binds: without a limit a backlog of gangs would reserve capacity for seconds before it is used, and each binding in
	// progress costs a goroutine and, by the hundred, another connection.
	MaxInFlight = 128
	// Timeout is after what time an admitted gang, or a pod in flight, holds the others up no more: it may wait for a volume.
	Timeout = 5 * time.Second
)

// Requeuer tries gangs again.
type Requeuer interface {
	Deferred(after time.Duration) // the next deferred gang may be planned
	Optional()                    // optional members may be placed
}

// Limiter admits gangs to planning in queue order.
type Limiter struct {
	now     func() time.Time
	pods    *gangstate.Store
	requeue Requeuer

	mu       sync.RWMutex
	admitted map[identity.Key]admission // whose required members are about to be planned
	deferred map[identity.Key]order.Key
}

type admission struct {
	members int
	at      time.Time
}

// New limiter by the pods of a store.
func New(now func() time.Time, pods *gangstate.Store, requeue Requeuer) *Limiter {
	return &Limiter{now: now, pods: pods, requeue: requeue, admitted: map[identity.Key]admission{}, deferred: map[identity.Key]order.Key{}}
}

// Admit a gang to planning so many members, or defer it while too many pods are in flight.
func (l *Limiter) Admit(key identity.Key, at order.Key, members int) bool {
	inFlight := l.pods.InFlight(l.now(), Timeout)
	l.mu.Lock()
	defer l.mu.Unlock()
	if inFlight+l.expected(key) >= MaxInFlight {
		l.deferred[key] = at
		l.requeue.Deferred(Timeout) // at the latest
		return false
	}
	delete(l.deferred, key)
	l.admitted[key] = admission{members, l.now()}
	return true
}

// expected is how many pods the other admitted gangs will add; the caller holds mu.
func (l *Limiter) expected(except identity.Key) int {
	members := 0
	for key, admission := range l.admitted {
		if key != except && l.now().Sub(admission.at) < Timeout {
			members += admission.members
		}
	}
	return members
}

// Next removes and returns the first deferred gang in queue order; false if there is none, or too many pods are in flight. A gang
// that is not admitted afterwards waits for something else.
func (l *Limiter) Next() (identity.Key, bool) {
	inFlight := l.pods.InFlight(l.now(), Timeout)
	l.mu.Lock()
	defer l.mu.Unlock()
	var key identity.Key
	var first *order.Key
	for deferred, at := range l.deferred {
		if first == nil || order.Less(&at, first) {
			key, first = deferred, &at
		}
	}
	if first == nil || inFlight+l.expected(key) >= MaxInFlight {
		return identity.Key{}, false
	}
	delete(l.deferred, key)
	return key, true
}

// Done with a gang: it was planned, or cannot be planned now. Deferred gangs may follow, and after the last of them the optional members
// of others, which waited for them.
func (l *Limiter) Done(key identity.Key) {
	l.mu.Lock()
	before := len(l.admitted) + len(l.deferred)
	delete(l.admitted, key)
	delete(l.deferred, key)
	after := len(l.admitted) + len(l.deferred)
	l.mu.Unlock()
	switch {
	case after == before:
	case after == 0:
		l.requeue.Optional()
	default:
		l.requeue.Deferred(0)
	}
}

// Others reports whether another gang is admitted or deferred.
func (l *Limiter) Others(except identity.Key) bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	others := len(l.admitted) + len(l.deferred)
	if _, admitted := l.admitted[except]; admitted {
		others--
	}
	if _, deferred := l.deferred[except]; deferred {
		others--
	}
	return others > 0
}
