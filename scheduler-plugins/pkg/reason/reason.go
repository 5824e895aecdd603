// Package reason gives every wait a name and numbers. The same token stands in the pod's condition, the event, the metric
// and /debug/gangs, so whoever meets it in one place finds it in the others.
package reason

import (
	"fmt"
	"slices"
	"strings"

	"coach.dev/scheduler-plugins/pkg/identity"
)

// Token is the kind of a wait.
type Token string

// The tokens, in the order in which they are looked for.
const (
	Misconfigured   Token = "Misconfigured"   // what is asked for contradicts itself; waiting does not help
	WaitingMembers  Token = "WaitingMembers"  // needed members are not created yet
	Placing         Token = "Placing"         // all have nodes, some are still on their way there
	NeverFits       Token = "NeverFits"       // not even the empty cluster holds the needed members
	ShadowReserved  Token = "ShadowReserved"  // the room is kept for a gang ahead in the queue
	Draining        Token = "Draining"        // it fits as soon as pods that are already leaving are gone
	WaitingCapacity Token = "WaitingCapacity" // others hold the room
)

// Tokens in the order in which they are looked for.
var Tokens = [...]Token{Misconfigured, WaitingMembers, Placing, NeverFits, ShadowReserved, Draining, WaitingCapacity}

// Claims reports whether a gang that waits for this has a claim on room that the gangs behind it could take. One that waits
// for something else than room stands in nobody's way.
func (t Token) Claims() bool { return t == WaitingCapacity || t == Draining }

// advice is the next step for whoever reads the message.
var advice = map[Token]string{
	Misconfigured:   "correct the labels or the Gang object",
	WaitingMembers:  "it starts when the rest is created",
	Placing:         "nothing to do",
	NeverFits:       "ask for less or add a larger node",
	ShadowReserved:  "it starts after that job, or earlier where it does not delay it",
	Draining:        "it starts when they are gone",
	WaitingCapacity: "it starts when room comes free",
}

// Count is a number of equal members of one role.
type Count struct {
	Role    identity.Role
	Members int
}

// Words prints "1 worker" or "2 workers".
func (c Count) Words() string {
	if c.Members == 1 {
		return "1 " + string(c.Role)
	}
	return fmt.Sprintf("%d %ss", c.Members, c.Role)
}

// Reason is one verdict on a gang that cannot go to its nodes now.
type Reason struct {
	Token     Token
	Missing   []Count        // needed members without a node, by role
	Partial   int            // how many of these a partial placement held, which is not carried out
	BlockedBy []identity.Key // jobs in the way, by name
	Text      string         // the numbers in words
}

// Same reports whether two verdicts tell a person the same, so that no second event is due: equal token, equal needs. The
// best partial fit and the jobs in the way move with every pod of the cluster and are no news.
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
