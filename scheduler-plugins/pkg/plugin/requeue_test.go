package plugin

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"coach.dev/scheduler-plugins/pkg/api"
	"coach.dev/scheduler-plugins/pkg/backpressure"
	"coach.dev/scheduler-plugins/pkg/identity"
	"coach.dev/scheduler-plugins/pkg/order"
)

func TestOptionalMembersThatWereHeldForOthersAreTriedWhenTheseAreDone(t *testing.T) {
	c := newCluster(t, `{}`, node("n1", "2"))
	c.gang("a", 1, 1, 1, 2)
	c.job("a", 1, "1500m")
	c.eventuallyPlaced("a", 3)
	other := identity.Key{Namespace: "default", Job: "other"}
	c.state.limiter.Admit(other, order.Key{}, 1) // another gang is about to be planned
	c.pod("a", identity.Worker, 1, "1500m")
	c.create(node("n2", "2")) // no pod in the queue gets this event
	c.never("an optional member before the required ones of others", func() bool { return c.placed("a") != 3 })
	c.state.limiter.Done(other)
	c.eventuallyPlaced("a", 4)
}

func TestAPlanIsMadeAgainWhenItsNodeIsGone(t *testing.T) {
	c := newCluster(t, `{"preemption":"fitgpp"}`, node("n1", "4"))
	c.gang("be", 1, 1, 1, 1, func(g *api.Gang) { g.Spec.GracePeriodSeconds = 600 })
	c.job("be", 1, "3500m")
	c.eventuallyPlaced("be", 3)
	c.gang("te", 1, 1, 1, 1, trial)
	c.job("te", 1, "3")
	c.eventuallyWaits("te", "Draining") // planned on n1, for when its victim is gone
	c.create(node("n2", "4"))
	if err := c.client.CoreV1().Nodes().Delete(context.Background(), "n1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.eventuallyPlaced("te", 3)
	for pod, node := range c.nodesOf("te") {
		if node != "n2" {
			t.Errorf("%s is on %s", pod, node)
		}
	}
}

func TestTwoProfilesCannotGiveDifferentArguments(t *testing.T) {
	c := newCluster(t, `{}`)
	_, err := c.state.newGang(context.Background(), &runtime.Unknown{Raw: []byte(`{"backfill":"any"}`)}, c.state.handle)
	if err == nil || !strings.Contains(err.Error(), "other arguments than another profile") {
		t.Errorf("it says %v", err)
	}
}

func TestABacklogOfGangsIsPlannedNoFasterThanItIsBound(t *testing.T) {
	c := newCluster(t, `{}`, node("n1", "1000"), node("n2", "1000"), node("n3", "1000"), node("n4", "1000"), node("n5", "1000"))
	most := 0
	var bound atomic.Int32
	c.bound = func(*v1.Pod, string) {
		// A pod in flight for long does not count, so on a stalled machine there may be more.
		if now := time.Now(); c.state.gangPods.InFlight(now, backpressure.Timeout) == c.state.gangPods.InFlight(now, time.Hour) {
			most = max(most, c.state.gangPods.InFlight(now, time.Hour))
		}
		bound.Add(1)
		time.Sleep(2 * time.Millisecond) // slower than planning
	}
	const gangs = 45       // of four: more pods than may be in flight, and few enough for the race detector
	for i := range gangs { // slowly: the in-memory API server buffers no more than a hundred events of a watch
		name := fmt.Sprintf("g%02d", i)
		c.job(name, 2, "1")
		c.eventually("they are seen", func() bool {
			_, pending, _ := c.state.gangPods.Members(identity.Key{Namespace: "default", Job: name})
			return len(pending) == 4
		})
	}
	for i := range gangs { // and now all may start at once
		c.gang(fmt.Sprintf("g%02d", i), 1, 1, 2, 2)
	}
	c.eventually("all are bound", func() bool { return bound.Load() >= 4*gangs })
	if most > backpressure.MaxInFlight+4 || most < 16 {
		t.Errorf("%d pods were in flight at once; the limit is %d and a gang", most, backpressure.MaxInFlight)
	}
}
