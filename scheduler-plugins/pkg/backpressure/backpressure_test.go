package backpressure

import (
	"testing"
	"time"

	"coach.dev/scheduler-plugins/pkg/gangstate"
	"coach.dev/scheduler-plugins/pkg/identity"
	"coach.dev/scheduler-plugins/pkg/order"
)

type calls struct{ deferred, optional int }

func (c *calls) Deferred(time.Duration) { c.deferred++ }
func (c *calls) Optional()              { c.optional++ }

func TestGangsBeyondTheLimitAreDeferredInQueueOrder(t *testing.T) {
	now, requeue := time.Unix(1000, 0), &calls{}
	l := New(func() time.Time { return now }, gangstate.New(), requeue)
	first, late, early := identity.Key{Job: "first"}, identity.Key{Job: "late"}, identity.Key{Job: "early"}
	if !l.Admit(first, order.Key{}, MaxInFlight) {
		t.Fatal("the first gang is deferred, although nothing is in flight")
	}
	if l.Admit(late, order.Key{Since: 2}, 1) || l.Admit(early, order.Key{Since: 1}, 1) || requeue.deferred != 2 {
		t.Fatalf("admitted beyond the limit, or not requeued: %+v", requeue)
	}
	if key, found := l.Next(); found {
		t.Fatalf("%v may be planned while the first gang counts", key)
	}
	l.Done(first)
	for _, want := range []identity.Key{early, late} {
		if key, found := l.Next(); key != want || !found {
			t.Fatalf("%v, %v comes next, not %v", key, found, want)
		}
	}
}

func TestAnAdmittedGangHoldsTheOthersUpForALimitedTime(t *testing.T) {
	now := time.Unix(1000, 0)
	l := New(func() time.Time { return now }, gangstate.New(), &calls{})
	l.Admit(identity.Key{Job: "a"}, order.Key{}, MaxInFlight)
	now = now.Add(Timeout)
	if !l.Admit(identity.Key{Job: "b"}, order.Key{}, 1) {
		t.Error("deferred after the timeout")
	}
}

func TestOptionalMembersAreTriedWhenTheLastGangIsDone(t *testing.T) {
	requeue := &calls{}
	l := New(func() time.Time { return time.Unix(1000, 0) }, gangstate.New(), requeue)
	a, b := identity.Key{Job: "a"}, identity.Key{Job: "b"}
	l.Admit(a, order.Key{}, 1)
	l.Admit(b, order.Key{}, 1)
	if l.Done(a); requeue.optional != 0 || !l.Others(a) || l.Others(b) {
		t.Errorf("b is about to be planned: %+v", requeue)
	}
	if l.Done(b); requeue.optional != 1 || l.Others(a) {
		t.Errorf("no gang is about to be planned: %+v", requeue)
	}
	if l.Done(b); requeue.optional != 1 {
		t.Error("requeued twice")
	}
}
