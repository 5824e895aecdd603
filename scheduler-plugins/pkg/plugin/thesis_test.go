package plugin

import (
	"testing"

	"coach.dev/scheduler-plugins/pkg/identity"
)

func TestUnderTheThesisAJobWaitsForItsThreeTypes(t *testing.T) {
	c := newCluster(t, `{}`, node("n1", "8"))
	c.pod("a", identity.Worker, 0, "1", withThesisProfile)
	c.pod("a", identity.Server, 0, "1", withThesisProfile)
	c.never("a pod without the scheduler", func() bool { return c.placed("a") != 0 })
	c.pod("a", identity.Scheduler, 0, "1", withThesisProfile)
	c.eventuallyPlaced("a", 3)
}

func TestUnderTheThesisCountsAreIgnoredAndAGangCanBePartial(t *testing.T) {
	c := newCluster(t, `{}`, node("n1", "2"))
	c.job("a", 3, "900m", withThesisProfile)
	c.eventuallyPlaced("a", 4) // the third worker has no capacity, and the others do not wait for it
}

func TestUnderTheThesisAJobIsForgottenWithItsPods(t *testing.T) {
	c := newCluster(t, `{}`, node("n1", "8"))
	c.job("a", 1, "1", withThesisProfile)
	c.eventuallyPlaced("a", 3)
	c.removeJob("a")
	c.eventually("no pods", func() bool { return len(c.state.gangPods.Gangs()) == 0 })
	c.pod("a", identity.Worker, 0, "1", withThesisProfile)
	c.never("a worker by what it had before", func() bool { return c.placed("a") != 0 })
}

func TestUnderTheThesisJobsAreKeptApartWhereThereIsAnEmptyNode(t *testing.T) {
	c := newCluster(t, `{}`, node("n1", "8"), node("n2", "8"))
	c.job("a", 1, "1", withThesisProfile)
	c.eventuallyPlaced("a", 3)
	used := map[string]bool{}
	for _, node := range c.nodesOf("a") {
		used[node] = true
	}
	if len(used) == 2 {
		t.Skip("the stock scores spread the job over both nodes: the thesis's score does not distinguish them")
	}
	c.job("b", 1, "1", withThesisProfile)
	c.eventuallyPlaced("b", 3)
	for pod, node := range c.nodesOf("b") {
		if used[node] {
			t.Errorf("%s is on %s with job a", pod, node)
		}
	}
}
