package plugin

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"coach.dev/scheduler-plugins/pkg/api"
	"coach.dev/scheduler-plugins/pkg/identity"
)

// short is a cluster on which gang a has just lost one of the two workers that it requires, and gang b, which is ahead in the queue, would
// fit into what that worker held.
func short(t *testing.T, args string) *cluster {
	c := newCluster(t, args, node("n1", "4"))
	c.otherPod("web", "1")
	c.eventuallyPlaced("web", 1)
	c.gang("b", 1, 1, 2, 2)
	c.gang("a", 1, 1, 2, 2)
	c.job("a", 2, "1400m")
	c.eventuallyPlaced("a", 4)
	c.job("b", 2, "600m")
	c.eventuallyWaits("b", "WaitingCapacity")
	c.remove("a-worker-1")
	return c
}

func TestARunningGangThatLosesAMemberKeepsItsRoom(t *testing.T) {
	c := short(t, `{}`)
	c.never("the waiting gang in the room of the lost worker", func() bool { return c.placed("b") != 0 })
	c.pod("a", identity.Worker, 1, "1400m")
	c.eventuallyPlaced("a", 4)
	c.never("the waiting gang in addition", func() bool { return c.placed("b") != 0 })
	c.removeJob("a")
	c.eventuallyPlaced("b", 4)
}

func TestTheRoomOfALostMemberIsNotKeptForLong(t *testing.T) {
	c := short(t, `{"keepSeconds":2}`)
	if message := c.eventuallyWaits("b", "WaitingCapacity"); !strings.Contains(message, "blocked by job a") {
		t.Error(message)
	}
	c.eventuallyPlaced("b", 4)
}

func TestWithoutKeepSecondsAQueuedGangTakesTheRoomOfALostMember(t *testing.T) {
	c := short(t, `{"keepSeconds":0}`)
	c.eventuallyPlaced("b", 4)
}

func TestAGangThatRequiresLessKeepsNoRoom(t *testing.T) {
	c := short(t, `{}`)
	c.never("the waiting gang", func() bool { return c.placed("b") != 0 })
	c.gang("a", 1, 1, 1, 1)
	c.eventuallyPlaced("b", 4)
}

func TestAGangWhoseObjectIsDeletedKeepsNoRoom(t *testing.T) {
	c := short(t, `{}`)
	c.state.removeGang(identity.Key{Namespace: "default", Job: "a"})
	c.eventuallyPlaced("b", 4)
}

func TestAGangWhoseLastMemberIsGoneKeepsNoRoom(t *testing.T) {
	c := short(t, `{}`)
	c.never("the waiting gang", func() bool { return c.placed("b") != 0 })
	c.removeJob("a")
	c.eventuallyPlaced("b", 4)
}

func TestAGangThatLostANodeWaitsBehindNoOtherForItsMember(t *testing.T) {
	c := newCluster(t, `{}`, node("n1", "2"), node("n2", "2"), node("n3", "2"))
	c.otherPod("web", "2")
	c.eventuallyPlaced("web", 1)
	c.gang("b", 1, 1, 2, 2)
	c.gang("a", 1, 1, 2, 2)
	c.job("a", 2, "1400m")
	c.eventuallyPlaced("a", 4)
	c.job("b", 2, "1400m")
	c.eventuallyWaits("b", "WaitingCapacity")
	lost := c.nodesOf("a")["a-worker-1"]
	if err := c.client.CoreV1().Nodes().Delete(context.Background(), lost, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for pod, node := range c.nodesOf("a") {
		if node == lost {
			c.remove(pod)
		}
	}
	c.remove("web")
	c.pod("a", identity.Worker, 1, "1400m")
	for role, pods := range map[identity.Role]string{identity.Scheduler: "a-scheduler-0", identity.Server: "a-server-0"} {
		if _, there := c.nodesOf("a")[pods]; !there {
			c.pod("a", role, 0, "10m")
		}
	}
	c.eventuallyPlaced("a", 4)
}

// TestTheRoomOfALostMemberIsHeldAtEveryInstant looks at it all the time while its pod goes.
func TestTheRoomOfALostMemberIsHeldAtEveryInstant(t *testing.T) {
	s := NewState(clock.RealClock{})
	s.profiles["coach"] = coachProfile
	var free atomic.Int64
	for i := range 1000 {
		object := &api.Gang{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint("job-", i)}}
		object.Spec.Roles = []api.Role{{Name: identity.Worker, Required: 2, Desired: 2}}
		s.setGang(object)
		var lost *v1.Pod
		for w := range 2 {
			lost = &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("job-%d-worker-%d", i, w),
				UID: types.UID(fmt.Sprintf("%d.%d", i, w)), Labels: map[string]string{identity.JobLabel: object.Name, identity.RoleLabel: string(identity.Worker)}},
				Spec: v1.PodSpec{SchedulerName: "coach", NodeName: "n1"}}
			s.podChanged(context.Background(), lost)
		}
		done, looked := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(looked)
			for {
				if _, known := s.gangPods.Pod(string(lost.UID)); !known && !s.keepsRoom(object.Key()) {
					free.Add(1)
				}
				select {
				case <-done:
					return
				default:
				}
			}
		}()
		s.podDeleted(lost)
		close(done)
		<-looked
	}
	if free.Load() > 0 {
		t.Errorf("it was free %d times", free.Load())
	}
}
