//go:build integration

package integration

import (
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"coach.dev/scheduler-plugins/pkg/identity"
)

func TestTwoGangsThatEachCouldTakeHalf(t *testing.T) {
	c := newCluster(t, nil, map[string]string{"n1": "2", "n2": "2"})
	c.gang("a", 3, 3)
	c.gang("b", 3, 3)
	for _, role := range identity.Roles[:2] {
		c.pod("a", role, 0, "10m")
		c.pod("b", role, 0, "10m")
	}
	for i := range 3 {
		c.pod("a", identity.Worker, i, "900m")
		c.pod("b", identity.Worker, i, "900m")
	}
	c.eventually("one of them runs", func() bool { return c.placed("a") == 5 || c.placed("b") == 5 })
	first, second := "a", "b"
	if c.placed("b") == 5 {
		first, second = "b", "a"
	}
	if message := c.eventuallyWaits(second, "WaitingCapacity"); !strings.Contains(message, "needs 1 scheduler x 0.01 cpu") {
		t.Error(message)
	}
	c.never("part of the second", func() bool { return c.placed(second) != 0 })
	c.remove(first)
	c.eventuallyPlaced(second, 5)
}

func TestFragmentation(t *testing.T) {
	c := newCluster(t, nil, map[string]string{"n1": "6", "n2": "2", "n3": "2", "n4": "2"})
	c.gang("a", 3, 3)
	c.job("a", 3, "3900m")
	c.eventuallyWaits("a", "NeverFits")
	c.never("part of it", func() bool { return c.placed("a") != 0 })
	c.gang("b", 2, 2)
	c.job("b", 2, "2900m")
	c.eventuallyPlaced("b", 4)
}

func TestAnInfeasibleGangAtTheHead(t *testing.T) {
	c := newCluster(t, nil, map[string]string{"n1": "4"})
	c.gang("huge", 1, 1)
	c.job("huge", 1, "9")
	c.eventuallyWaits("huge", "NeverFits")
	for i := range 3 {
		job := fmt.Sprintf("small-%d", i)
		c.gang(job, 1, 1)
		c.job(job, 1, "1")
		c.eventuallyPlaced(job, 3)
	}
	c.otherPod("web", "100m")
	c.eventuallyPlaced("web", 1)
}

func TestMembersThatArriveLate(t *testing.T) {
	c := newCluster(t, nil, map[string]string{"n1": "8"})
	c.pod("a", identity.Worker, 0, "1")
	c.eventuallyWaits("a", "WaitingMembers") // no Gang object
	c.gang("a", 2, 2)
	c.pod("a", identity.Scheduler, 0, "1")
	c.pod("a", identity.Server, 0, "1")
	c.never("a pod without the second worker", func() bool { return c.placed("a") != 0 })
	c.pod("a", identity.Worker, 1, "1")
	c.eventuallyPlaced("a", 4)
}

func TestASecondEpochOfTheSameJob(t *testing.T) {
	c := newCluster(t, nil, map[string]string{"n1": "8"})
	c.gang("a", 1, 1)
	c.job("a", 1, "1")
	c.eventuallyPlaced("a", 3)
	c.gang("a", 3, 3)
	c.pod("a", identity.Worker, 1, "1")
	c.never("a second worker without the third", func() bool { return c.placed("a") != 3 })
	c.pod("a", identity.Worker, 2, "1")
	c.eventuallyPlaced("a", 5)
}

func TestARunningGangKeepsTheRoomOfALostMember(t *testing.T) {
	c := newCluster(t, map[string]any{"keepSeconds": 5}, map[string]string{"n1": "2"})
	c.gang("b", 1, 1)
	c.gang("a", 1, 1)
	c.job("a", 1, "1500m")
	c.eventuallyPlaced("a", 3)
	c.job("b", 1, "1")
	c.eventuallyWaits("b", "WaitingCapacity")
	lose := func() {
		c.must(shared.Client.CoreV1().Pods("default").Delete(c.ctx, "a-worker-0", immediately))
		c.never("the gang that waits, in the room of the lost worker", func() bool { return c.placed("b") != 0 })
	}
	lose()
	c.pod("a", identity.Worker, 0, "1500m")
	c.eventuallyPlaced("a", 3)
	lose()
	c.eventuallyPlaced("b", 3) // the time is over
}

func TestANodeLostWhileBinding(t *testing.T) {
	c := newCluster(t, nil, map[string]string{"n1": "10", "n2": "20"})
	c.refuseBindings("n1") // each of the hundred bindings fails, as on a node that is just going
	const workers = 98
	c.gang("a", workers, workers)
	c.job("a", workers, "90m") // fits n1, the fuller one
	c.eventually("bindings fail", func() bool { return c.metric(`scheduler_schedule_attempts_total{profile="coach",result="error"}`) })
	c.must(shared.Client.CoreV1().Nodes().Delete(c.ctx, "n1", metav1.DeleteOptions{}))
	c.eventuallyPlaced("a", workers+2)
	for pod, node := range c.pods("a") {
		if node != "n2" {
			t.Errorf("%s is on %s", pod, node)
		}
	}
}

func TestANodeLostBetweenThePlanAndTheBinding(t *testing.T) {
	c := victim(t) // the trial is planned on n1, for when its victim is gone
	c.must(shared.Client.CoreV1().Nodes().Delete(c.ctx, "n1", metav1.DeleteOptions{}))
	c.node("n2", "4")
	c.eventuallyPlaced("trial", 3)
	for pod, node := range c.pods("trial") {
		if node != "n2" {
			t.Errorf("%s is on %s", pod, node)
		}
	}
	c.eventually("the victim need not go any more", func() bool { _, drainsFor := c.status("victim"); return drainsFor == "" })
}

func TestANodeLostRightAfterTheFirstBinding(t *testing.T) {
	c := newCluster(t, nil, map[string]string{"n1": "10", "n2": "20"})
	watching, err := shared.Client.CoreV1().Pods("default").Watch(c.ctx, metav1.ListOptions{})
	c.must(err)
	defer watching.Stop()
	const workers = 98
	c.gang("a", workers, workers)
	c.job("a", workers, "90m") // fits n1, the fuller one
	for event := range watching.ResultChan() {
		if pod, ok := event.Object.(*v1.Pod); ok && pod.Spec.NodeName != "" {
			break // the first of a hundred bindings
		}
	}
	c.must(shared.Client.CoreV1().Nodes().Delete(c.ctx, "n1", metav1.DeleteOptions{}))
	// What the node lifecycle and the functions' own controllers do: pods of the lost node go and come again.
	again := map[string]bool{}
	c.eventually("the whole gang is bound to the node that is left", func() bool {
		whole := true
		for name, node := range c.pods("a") {
			if node == "n1" {
				again[name] = true
				c.must(shared.Client.CoreV1().Pods("default").Delete(c.ctx, name, immediately))
				var role identity.Role
				var index int
				parts := strings.Split(name, "-")
				role = identity.Role(parts[1])
				_, err := fmt.Sscan(parts[2], &index)
				c.must(err)
				cores := "90m"
				if role != identity.Worker {
					cores = "10m"
				}
				c.pod("a", role, index, cores)
			}
			whole = whole && node == "n2"
		}
		return whole
	})
	t.Logf("%d of %d pods were bound to the lost node", len(again), workers+2)
	if n := c.placed("a"); n != workers+2 {
		t.Errorf("%d of %d", n, workers+2)
	}
}

func TestARestartOfTheSchedulerInTheMiddle(t *testing.T) {
	nodes := map[string]string{}
	for i := range 4 {
		nodes[fmt.Sprintf("n%d", i)] = "4"
	}
	c := newCluster(t, nil, nodes)
	const jobs = 12 // of 1.82 cores: two on each of four nodes have capacity
	for i := range jobs {
		c.gang(fmt.Sprintf("j%02d", i), 2, 2)
	}
	for i := range jobs {
		c.job(fmt.Sprintf("j%02d", i), 2, "900m")
		if i == 3 || i == 6 {
			c.kill()
			c.start()
		}
	}
	ran := map[string]bool{}
	for len(ran) < jobs {
		c.eventually("another gang runs, whole", func() bool {
			for i := range jobs {
				job := fmt.Sprintf("j%02d", i)
				if !ran[job] && c.placed(job) == 4 {
					ran[job] = true
					c.remove(job)
					return true
				}
			}
			return false
		})
		if len(ran) == 5 {
			c.kill()
			c.start()
		}
	}
}

func TestPodsOfNoGangUnderPressure(t *testing.T) {
	c := newCluster(t, nil, map[string]string{"n1": "4", "n2": "4"})
	for i := range 6 {
		job := fmt.Sprintf("j%d", i)
		c.gang(job, 2, 2)
		c.job(job, 2, "900m")
		c.otherPod("web-"+job, "50m")
	}
	for i := range 6 {
		c.eventuallyPlaced(fmt.Sprintf("web-j%d", i), 1)
	}
	ran := map[string]bool{}
	for len(ran) < 6 {
		c.eventually("another gang runs, whole", func() bool {
			for i := range 6 {
				job := fmt.Sprintf("j%d", i)
				if !ran[job] && c.placed(job) == 4 {
					ran[job] = true
					c.remove(job)
					return true
				}
			}
			return false
		})
	}
}

func TestFitGppPreemptsAWholeGangAndCountsIt(t *testing.T) {
	c := newCluster(t, map[string]any{"preemption": "fitgpp"}, map[string]string{"n1": "4", "n2": "8"})
	c.gang("small", 1, 1)
	c.job("small", 1, "3500m")
	c.eventuallyPlaced("small", 3)
	c.gang("large", 1, 1)
	c.job("large", 1, "7500m")
	c.eventuallyPlaced("large", 3)
	c.gang("trial", 1, 1, func(spec map[string]any) { spec["trialAndError"] = true })
	c.job("trial", 1, "3")
	c.eventuallyPlaced("trial", 3)
	if small, large := len(c.pods("small")), c.placed("large"); small != 0 || large != 3 {
		t.Errorf("%d pods of the smaller gang are left, and %d of the larger", small, large)
	}
	c.eventually("the preemption is counted, and over", func() bool {
		preemptions, drainsFor := c.status("small")
		return preemptions == 1 && drainsFor == ""
	})
	c.job("small", 1, "3500m") // its functions make new pods
	c.eventuallyWaits("small", "WaitingCapacity")
	c.remove("trial")
	c.eventuallyPlaced("small", 3)
}

// victim is a job that would need half a minute to stop, in the middle of an epoch, and a trial that needs its capacity.
func victim(t *testing.T) *cluster {
	c := newCluster(t, map[string]any{"preemption": "fitgpp"}, map[string]string{"n1": "4"})
	c.gang("victim", 1, 1, func(spec map[string]any) { spec["gracePeriodSeconds"] = int64(30) })
	c.job("victim", 1, "3500m")
	c.eventuallyPlaced("victim", 3)
	c.gang("trial", 1, 1, func(spec map[string]any) { spec["trialAndError"] = true })
	c.job("trial", 1, "3")
	c.eventually("the victim is asked to stop", func() bool { _, drainsFor := c.status("victim"); return drainsFor == "default/trial" })
	c.eventuallyWaits("trial", "Draining")
	return c
}

func betweenEpochs(spec map[string]any) {
	spec["gracePeriodSeconds"], spec["betweenEpochs"] = int64(30), true
}

func TestAVictimGoesWhenItsHandlerHasEndedTheEpoch(t *testing.T) {
	c := victim(t)
	c.never("a pod of it goes before", func() bool { return c.placed("victim") != 3 })
	c.gang("victim", 1, 1, betweenEpochs)
	c.eventuallyPlaced("trial", 3)
	if n := len(c.pods("victim")); n != 0 {
		t.Errorf("%d pods of the victim are left", n)
	}
}

func TestAVictimWhoseHandlerDoesNothingGoesWhenItsTimeIsOver(t *testing.T) {
	c := newCluster(t, map[string]any{"preemption": "fitgpp"}, map[string]string{"n1": "4"})
	c.gang("victim", 1, 1, func(spec map[string]any) { spec["gracePeriodSeconds"] = int64(3) })
	c.job("victim", 1, "3500m")
	c.eventuallyPlaced("victim", 3)
	c.gang("trial", 1, 1, func(spec map[string]any) { spec["trialAndError"] = true })
	c.job("trial", 1, "3")
	c.never("a pod of it goes before", func() bool { return c.placed("victim") != 3 })
	c.eventuallyPlaced("trial", 3)
}

func TestARestartOfTheSchedulerWhileAVictimDrains(t *testing.T) {
	c := victim(t)
	c.kill()
	c.start()
	c.never("a pod of it goes before", func() bool { return c.placed("victim") != 3 })
	c.gang("young", 1, 1) // would fit into what comes free
	c.job("young", 1, "100m")
	c.gang("victim", 1, 1, betweenEpochs)
	c.eventuallyPlaced("trial", 3)
	if preemptions, _ := c.status("victim"); preemptions != 1 {
		t.Errorf("one preemption is counted %d times", preemptions)
	}
}

func TestAPreemptionIsCalledOffWhenNobodyNeedsTheCapacityAnyMore(t *testing.T) {
	c := victim(t)
	c.remove("trial")
	c.eventually("the victim may stay, and nothing is counted", func() bool {
		preemptions, drainsFor := c.status("victim")
		return preemptions == 0 && drainsFor == ""
	})
	if n := c.placed("victim"); n != 3 {
		t.Errorf("%d of 3", n)
	}
}

func TestMisconfigurationsAreReportedOnThePodsThatTheyHold(t *testing.T) {
	c := newCluster(t, map[string]any{"resyncSeconds": 1}, map[string]string{"n1": "8"})
	c.gang("a", 1, 1)
	c.job("a", 1, "1")
	c.eventuallyPlaced("a", 3)
	c.pod("a", identity.Worker, 1, "1") // one more than the job desires
	c.eventuallyWaits("a", "Misconfigured")
	pod, err := shared.Client.CoreV1().Pods("default").Get(c.ctx, "a-worker-1", metav1.GetOptions{})
	c.must(err)
	for i := range pod.Status.Conditions {
		pod.Status.Conditions[i].Message = "written by an earlier attempt"
	}
	_, err = shared.Client.CoreV1().Pods("default").UpdateStatus(c.ctx, pod, metav1.UpdateOptions{})
	c.must(err)
	c.eventuallyWaits("a", "Misconfigured")
	c.pod("b", identity.Worker, 0, "1", func(p *v1.Pod) { p.Labels[identity.RoleLabel] = "wroker" })
	c.eventually("the misspelt role is named", func() bool {
		pod, err := shared.Client.CoreV1().Pods("default").Get(c.ctx, "b-worker-0", metav1.GetOptions{})
		c.must(err)
		return len(pod.Status.Conditions) == 1 && strings.Contains(pod.Status.Conditions[0].Message, `label coach.dev/role is "wroker"`)
	})
}

func TestAPodBehindASchedulingGateIsNotThereYet(t *testing.T) {
	c := newCluster(t, nil, map[string]string{"n1": "8"})
	c.gang("a", 1, 1)
	c.job("a", 1, "1", func(p *v1.Pod) {
		if p.Labels[identity.RoleLabel] == "worker" {
			p.Spec.SchedulingGates = []v1.PodSchedulingGate{{Name: "example.com/later"}}
		}
	})
	c.eventuallyWaits("a", "WaitingMembers")
	c.never("a part of it", func() bool { return c.placed("a") != 0 })
	patch := []byte(`[{"op":"remove","path":"/spec/schedulingGates"}]`)
	_, err := shared.Client.CoreV1().Pods("default").Patch(c.ctx, "a-worker-0", types.JSONPatchType, patch, metav1.PatchOptions{})
	c.must(err)
	c.eventuallyPlaced("a", 3)
}

func TestTheThesisProfilePlacesPartOfAJob(t *testing.T) {
	c := newCluster(t, nil, map[string]string{"n1": "2"})
	c.job("a", 3, "900m", func(p *v1.Pod) { p.Spec.SchedulerName = "coach-thesis" })
	c.eventuallyPlaced("a", 4)
}
