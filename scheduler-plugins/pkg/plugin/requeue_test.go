package plugin

import (
	"context"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"coach.dev/scheduler-plugins/pkg/api"
	"coach.dev/scheduler-plugins/pkg/identity"
)

func TestWantedMembersThatWereHeldForOthersGoWhenTheseAreThrough(t *testing.T) {
	c := newCluster(t, `{}`, node("n1", "2"))
	c.gang("a", 1, 1, 1, 2)
	c.job("a", 1, "1500m")
	c.eventuallyPlaced("a", 3)
	other := identity.Key{Namespace: "default", Job: "other"}
	c.state.mu.Lock()
	c.state.untried[other] = turn{1, c.state.clock.Now()} // another gang is on its way to a plan
	c.state.mu.Unlock()
	c.pod("a", identity.Worker, 1, "1500m")
	c.create(node("n2", "2")) // nobody in the queue to be told of it
	c.never("a wanted member before the needed ones of others", func() bool { return c.placed("a") != 3 })
	c.state.yield(other)
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
	_, err := c.state.NewGang(context.Background(), &runtime.Unknown{Raw: []byte(`{"backfill":"any"}`)}, c.state.handle)
	if err == nil || !strings.Contains(err.Error(), "other arguments than another profile") {
		t.Errorf("it says %v", err)
	}
}
