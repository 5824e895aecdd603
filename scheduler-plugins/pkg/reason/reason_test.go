package reason

import (
	"strings"
	"testing"

	"coach.dev/scheduler-plugins/pkg/identity"
)

func TestEveryTokenHasAdvice(t *testing.T) {
	for _, token := range Tokens {
		message := Reason{Token: token, Text: "needs 2 workers"}.Message()
		if advice[token] == "" || !strings.HasPrefix(message, string(token)+": needs 2 workers; ") {
			t.Errorf("%s has no advice: %s", token, message)
		}
	}
	if len(advice) != len(Tokens) {
		t.Errorf("%d tokens, %d pieces of advice", len(Tokens), len(advice))
	}
}

func TestSameIsQuietWhileOnlyThePartialFitMoves(t *testing.T) {
	two := []Count{{identity.Worker, 2}}
	one := Reason{Token: WaitingCapacity, Missing: two, Partial: 1, BlockedBy: []identity.Key{{Job: "a"}}}
	for name, test := range map[string]struct {
		other Reason
		same  bool
	}{
		"another partial fit":  {Reason{Token: WaitingCapacity, Missing: two, Partial: 0}, true},
		"another need":         {Reason{Token: WaitingCapacity, Missing: []Count{{identity.Worker, 3}}}, false},
		"another kind of wait": {Reason{Token: NeverFits, Missing: two}, false},
	} {
		if got := one.Same(test.other); got != test.same {
			t.Errorf("%s: same is %v, want %v", name, got, test.same)
		}
	}
}

func TestOnlyAWaitForRoomStandsInTheWayOfOthers(t *testing.T) {
	for _, token := range Tokens {
		if want := token == WaitingCapacity || token == Draining; token.ClaimsCapacity() != want {
			t.Errorf("%s claims capacity: %v", token, !want)
		}
	}
}

func TestWords(t *testing.T) {
	if got := (Count{identity.Server, 1}).String() + ", " + (Count{identity.Worker, 2}).String(); got != "1 server, 2 workers" {
		t.Error(got)
	}
	if got := Jobs([]identity.Key{{Job: "a"}, {Job: "b"}}); got != "jobs a, b" {
		t.Error(got)
	}
}
