// Package reason names why a gang waits, with numbers. The same token is in the pod's condition, the event, the metric and /debug/gangs.
package reason

import (
	"fmt"
	"slices"
	"strings"

	"coach.dev/scheduler-plugins/pkg/identity"
)

// Token is the kind of a wait.
type Token string

// The tokens, in the order in which they are checked.
const (
	Misconfigured   Token = "Misconfigured"   // what is asked for contradicts itself; waiting does not help
	WaitingMembers  Token = "WaitingMembers"  // required members are not created yet
	Placing         Token = "Placing"         // all have nodes, some are still on their way there
	NeverFits       Token = "NeverFits"       // not even the empty cluster holds the required members
	ShadowReserved  Token = "ShadowReserved"  // the capacity is reserved for a gang ahead in the queue
	Draining        Token = "Draining"        // it fits as soon as pods that are already leaving are gone
	WaitingCapacity Token = "WaitingCapacity" // other pods hold the capacity
)

// Tokens in the order in which they are checked.
var Tokens = [...]Token{Misconfigured, WaitingMembers, Placing, NeverFits, ShadowReserved, Draining, WaitingCapacity}

// ClaimsCapacity reports whether a gang that waits for this claims capacity that gangs behind it could use. One that waits for anything
// else does not block them.
func (t Token) ClaimsCapacity() bool { return t == WaitingCapacity || t == Draining }

// Starting is why pods wait before the scheduler has seen all of them.
const Starting = "Placing: the scheduler is starting and has not seen all pods yet"

// advice is the next step for the reader.
var advice = map[Token]string{
	Misconfigured:   "correct the labels or the Gang object",
	WaitingMembers:  "it starts when the rest is created",
	Placing:         "nothing to do",
	NeverFits:       "ask for less or add a larger node",
	ShadowReserved:  "it starts after that job, or earlier where it does not delay it",
	Draining:        "it starts when they are gone",
	WaitingCapacity: "it starts when capacity is freed",
}

// Count is a number of equal members of one role.
type Count struct {
	Role    identity.Role
	Members int
}

// String prints "1 worker" or "2 workers".
func (c Count) String() string {
	if c.Members == 1 {
		return "1 " + string(c.Role)
	}
	return fmt.Sprintf("%d %ss", c.Members, c.Role)
}

// Reason why a gang is pending.
type Reason struct {
	Token     Token
	Missing   []Count        // required members without a node, by role
	Partial   int            // how many of these a partial placement held, which is not carried out
	BlockedBy []identity.Key // jobs that hold the capacity, sorted
	Text      string         // the numbers in words
}

// Same reports whether two reasons need no second event: equal token, equal missing members. The
// best partial fit and the blocking jobs change with every pod of the cluster.
func (r Reason) Same(other Reason) bool {
	return r.Token == other.Token && slices.Equal(r.Missing, other.Missing)
}

// Message is the sentence for people, token first and the next step last.
func (r Reason) Message() string {
	return string(r.Token) + ": " + r.Text + "; " + advice[r.Token]
}

// Jobs prints "job a" or "jobs a, b".
func Jobs(keys []identity.Key) string {
	names := make([]string, len(keys))
	for i, key := range keys {
		names[i] = key.Job
	}
	if len(names) == 1 {
		return "job " + names[0]
	}
	return "jobs " + strings.Join(names, ", ")
}
