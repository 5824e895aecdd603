// Package order orders the scheduling queue (thesis algorithm 1: priority, then the job's creation
// time, then the pod's name), as a pure function of fields that never change while a pod waits.
//
// The thesis's plugin wrote maps inside its comparison and let a job's time move while its pods were queued; a heap whose
// keys move loses its order. Here a Key is made once for a pod, before it enters the queue, and then only read.
package order

// Key is the frozen place of a pod in the queue.
type Key struct {
	Priority int32 // of the pod; higher goes first
	// BestEffort gangs come after trial-and-error ones where these may preempt them; never set on a pod's key.
	BestEffort bool
	Since      int64  // the job's creation, nanoseconds since 1970; earlier goes first
	Gang       string // keeps a gang's pods together when two jobs were made in the same second; empty under the thesis's rules
	Name       string // of the pod
}

// Less reports whether a goes before b. It allocates nothing and is a strict total order on distinct keys.
func Less(a, b *Key) bool {
	switch {
	case a.Priority != b.Priority:
		return a.Priority > b.Priority
	case a.BestEffort != b.BestEffort:
		return b.BestEffort
	case a.Since != b.Since:
		return a.Since < b.Since
	case a.Gang != b.Gang:
		return a.Gang < b.Gang
	}
	return a.Name < b.Name
}
