package plugin

import (
	"strings"
	"testing"

	"coach.dev/scheduler-plugins/pkg/identity"
)

// preempted is a cluster on which gang be has just been preempted by te, and a core is left. Gang young, which is younger than both,
// would fit there.
func preempted(t *testing.T, args string) *cluster {
	c := newCluster(t, args, node("n1", "4"))
	c.gang("be", 1, 1, 2, 2)
	c.job("be", 2, "1900m")
	c.eventuallyPlaced("be", 4)
	c.gang("te", 1, 1, 1, 1, trial)
	c.job("te", 1, "3")
	c.eventuallyPlaced("te", 3)
	c.gang("young", 1, 1, 1, 1)
	c.job("young", 1, "500m")
	return c
}

func TestAPreemptedGangKeepsItsPlaceUntilItsPodsAreMadeAgain(t *testing.T) {
	c := preempted(t, `{"preemption":"fitgpp"}`)
	if message := c.eventuallyWaits("young", "ShadowReserved"); !strings.Contains(message, "job be is ahead: it was preempted, waits for its pods") {
		t.Error(message)
	}
	c.pod("be", identity.Scheduler, 0, "10m") // the first of its new pods
	c.never("the younger gang in its capacity", func() bool { return c.placed("young") != 0 })
	c.pod("be", identity.Server, 0, "10m")
	c.pod("be", identity.Worker, 0, "1900m")
	c.pod("be", identity.Worker, 1, "1900m")
	c.eventuallyWaits("be", "WaitingCapacity")
	c.removeJob("te")
	c.eventuallyPlaced("be", 4)
	c.never("the younger gang in addition", func() bool { return c.placed("young") != 0 })
	c.removeJob("be")
	c.eventuallyPlaced("young", 3)
}

func TestAPreemptedGangThatDoesNotComeBackIsNotWaitedForLong(t *testing.T) {
	c := preempted(t, `{"preemption":"fitgpp","returnSeconds":2}`)
	c.eventuallyWaits("young", "ShadowReserved")
	c.eventuallyPlaced("young", 3)
}

func TestAPreemptedGangWhoseObjectIsDeletedHasNoPlace(t *testing.T) {
	c := preempted(t, `{"preemption":"fitgpp"}`)
	c.eventuallyWaits("young", "ShadowReserved")
	c.state.removeGang(identity.Key{Namespace: "default", Job: "be"})
	c.eventuallyPlaced("young", 3)
}

func TestWithoutReturnSecondsNoGangWaitsForAPreemptedOne(t *testing.T) {
	c := preempted(t, `{"preemption":"fitgpp","returnSeconds":0}`)
	c.eventuallyPlaced("young", 3)
}
