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
	"k8s.io/utils/clock"

	"coach.dev/scheduler-plugins/pkg/identity"
)

func TestABacklogOfGangsIsPlannedNoFasterThanItIsBound(t *testing.T) {
	c := newCluster(t, `{}`, node("n1", "1000"), node("n2", "1000"), node("n3", "1000"), node("n4", "1000"), node("n5", "1000"))
	most := 0
	var bound atomic.Int32
	c.bound = func(*v1.Pod, string) {
		// A pod that is late counts no more, so on a machine that stood still there may be others beside it.
		if now := time.Now(); c.state.ledger.OnTheWay(now, lateTurn) == c.state.ledger.OnTheWay(now, time.Hour) {
			most = max(most, c.state.ledger.OnTheWay(now, time.Hour))
		}
		bound.Add(1)
		time.Sleep(2 * time.Millisecond) // slower than planning
	}
	const gangs = 45       // of four: more pods than may be on their way, and few enough for the race detector
	for i := range gangs { // slowly: the in-memory API server keeps no more than a hundred news for who watches
		name := fmt.Sprintf("g%02d", i)
		c.job(name, 2, "1")
		c.eventually("they are seen", func() bool {
			_, asking, _ := c.state.ledger.Members(identity.Key{Namespace: "default", Job: name})
			return len(asking) == 4
		})
	}
	for i := range gangs { // and now all may start at once
		c.gang(fmt.Sprintf("g%02d", i), 1, 1, 2, 2)
	}
	c.eventually("all are bound", func() bool { return bound.Load() >= 4*gangs })
	if most > maxOnTheWay+4 || most < 16 {
		t.Errorf("%d pods were on their way at once; the bound is %d and a gang", most, maxOnTheWay)
	}
}

func TestAProfileWithoutTheGateIsCalledMisconfigured(t *testing.T) {
	g := &Gang{state: NewState(clock.RealClock{})}
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{identity.JobLabel: "a", identity.RoleLabel: "worker"}}}
	if _, status := g.PreFilter(context.Background(), nil, pod, nil); !strings.Contains(status.Message(), "without CoachGate") {
		t.Errorf("it says %q", status.Message())
	}
}
