package plugin

import (
	"context"
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"coach.dev/scheduler-plugins/pkg/identity"
)

func TestAGangStartsAsAWholeOnOneNode(t *testing.T) {
	c := newCluster(t, `{}`, node("n1", "2"), node("n2", "4"), node("n3", "8"))
	c.gang("a", 1, 1, 3, 3)
	c.job("a", 3, "1")
	c.eventuallyPlaced("a", 5)
	for pod, node := range c.nodesOf("a") {
		if node != "n2" {
			t.Errorf("%s is on %s, not on the fullest node that takes all", pod, node)
		}
	}
}

func TestTwoGangsThatEachCouldTakeHalfStartOneAfterTheOther(t *testing.T) {
	c := newCluster(t, `{}`, node("n1", "2"), node("n2", "2"))
	c.gang("a", 1, 1, 3, 3)
	c.gang("b", 1, 1, 3, 3)
	// Their pods arrive alternately, as the thesis describes the deadlock (section 3.2).
	for _, role := range identity.Roles[:2] {
		c.pod("a", role, 0, "10m")
		c.pod("b", role, 0, "10m")
	}
	for i := range 3 {
		c.pod("a", identity.Worker, i, "900m")
		c.pod("b", identity.Worker, i, "900m")
	}
	c.eventually("one of them runs", func() bool { return c.placed("a")+c.placed("b") == 5 })
	first, second := "a", "b"
	if c.placed("b") == 5 {
		first, second = "b", "a"
	}
	c.eventuallyWaits(second, "WaitingCapacity")
	c.never("part of the second", func() bool { return c.placed(second) != 0 })
	c.removeJob(first)
	c.eventuallyPlaced(second, 5)
}

func TestASumThatFitsIsNotEnough(t *testing.T) {
	c := newCluster(t, `{}`, node("n1", "6"), node("n2", "2"), node("n3", "2"), node("n4", "2"))
	c.gang("a", 1, 1, 3, 3)
	c.job("a", 3, "3900m")
	message := c.eventuallyWaits("a", "NeverFits")
	if !strings.Contains(message, "3 workers x 3.9 cpu") || !strings.Contains(message, "the largest node has 6 cpu") {
		t.Errorf("no numbers: %s", message)
	}
	c.never("part of it", func() bool { return c.placed("a") != 0 })
}

func TestAGangThatCannotStartDelaysNoOther(t *testing.T) {
	c := newCluster(t, `{}`, node("n1", "4"))
	c.gang("huge", 1, 1, 1, 1)
	c.job("huge", 1, "9")
	c.eventuallyWaits("huge", "NeverFits")
	c.gang("small", 1, 1, 2, 2)
	c.job("small", 2, "1")
	c.eventuallyPlaced("small", 4)
	c.otherPod("web", "1")
	c.eventuallyPlaced("web", 1)
}

func TestMembersThatArriveLateAreWaitedFor(t *testing.T) {
	c := newCluster(t, `{}`, node("n1", "8"))
	c.pod("a", identity.Worker, 0, "1")
	c.eventuallyWaits("a", "WaitingMembers")
	c.gang("a", 1, 1, 2, 2)
	c.pod("a", identity.Scheduler, 0, "1")
	c.pod("a", identity.Worker, 1, "1")
	c.eventually("0 of 1 servers", func() bool {
		return strings.Contains(c.eventuallyWaits("a", "WaitingMembers"), "0 of 1 servers created")
	})
	c.never("a pod without the server", func() bool { return c.placed("a") != 0 })
	c.pod("a", identity.Server, 0, "1")
	c.eventuallyPlaced("a", 4)
}

func TestASecondEpochNeedsNoNewPods(t *testing.T) {
	c := newCluster(t, `{}`, node("n1", "8"))
	c.gang("a", 1, 1, 1, 1)
	c.job("a", 1, "1")
	c.eventuallyPlaced("a", 3)
	c.gang("a", 1, 1, 3, 3) // the next epoch needs three workers; the one that is warm counts
	c.pod("a", identity.Worker, 1, "1")
	c.never("a second worker without the third", func() bool { return c.placed("a") != 3 })
	c.pod("a", identity.Worker, 2, "1")
	c.eventuallyPlaced("a", 5)
}

func TestOptionalMembersStartWhenThereIsCapacityAndDelayNoGang(t *testing.T) {
	c := newCluster(t, `{}`, node("n1", "3"))
	c.gang("a", 1, 1, 1, 4)
	c.job("a", 4, "900m")
	c.eventuallyPlaced("a", 5) // three of four workers have capacity
	c.gang("b", 1, 1, 1, 1)
	c.job("b", 1, "900m")
	c.eventuallyWaits("b", "WaitingCapacity")
	c.remove("a-worker-2")
	c.eventuallyPlaced("b", 3) // and not a-worker-3, which is older and only optional
	c.removeJob("b")
	c.eventuallyPlaced("a", 5)
}

func TestPodsBeyondTheDesiredOnesAreHeld(t *testing.T) {
	c := newCluster(t, `{}`, node("n1", "8"))
	c.gang("a", 1, 1, 1, 2)
	c.job("a", 4, "1")
	c.eventuallyPlaced("a", 4)
	c.never("a third worker", func() bool { return c.placed("a") > 4 })
	c.gang("a", 1, 1, 1, 3)
	c.eventuallyPlaced("a", 5)
}

func TestAnOlderGangGoesFirstWhenRoomComesFree(t *testing.T) {
	c := newCluster(t, `{}`, node("n1", "4"))
	c.otherPod("web", "3")
	c.eventuallyPlaced("web", 1)
	c.gang("old", 1, 1, 1, 1)
	c.gang("young", 1, 1, 1, 1)
	c.job("young", 1, "3")
	c.eventuallyWaits("young", "WaitingCapacity")
	c.job("old", 1, "3")
	c.eventuallyWaits("old", "WaitingCapacity")
	c.remove("web")
	c.eventuallyPlaced("old", 3)
	c.never("the younger one", func() bool { return c.placed("young") != 0 })
	c.removeJob("old")
	c.eventuallyPlaced("young", 3)
}

func TestUnderStrictNoGangPassesTheHead(t *testing.T) {
	c := newCluster(t, `{}`, node("n1", "4"))
	c.otherPod("web", "2")
	c.eventuallyPlaced("web", 1)
	c.gang("head", 1, 1, 1, 1)
	c.job("head", 1, "3")
	c.eventuallyWaits("head", "WaitingCapacity")
	c.gang("small", 1, 1, 1, 1)
	c.job("small", 1, "1")
	if message := c.eventuallyWaits("small", "ShadowReserved"); !strings.Contains(message, "job head is ahead") {
		t.Error(message)
	}
	c.removeJob("head")
	c.eventuallyPlaced("small", 3)
}

func TestUnderAnyASmallGangPassesTheHead(t *testing.T) {
	c := newCluster(t, `{"backfill":"any","maxBypasses":1}`, node("n1", "4"))
	c.otherPod("web", "2")
	c.eventuallyPlaced("web", 1)
	c.gang("head", 1, 1, 1, 1)
	c.job("head", 1, "3")
	c.eventuallyWaits("head", "WaitingCapacity")
	c.gang("one", 1, 1, 1, 1)
	c.job("one", 1, "100m")
	c.eventuallyPlaced("one", 3)
	c.gang("two", 1, 1, 1, 1)
	c.job("two", 1, "100m")
	if message := c.eventuallyWaits("two", "ShadowReserved"); !strings.Contains(message, "no more gangs may pass it") {
		t.Error(message)
	}
}

func TestAPodWithAMisspeltRoleIsHeldWithAReason(t *testing.T) {
	c := newCluster(t, `{}`, node("n1", "8"))
	c.gang("a", 1, 1, 1, 1)
	c.job("a", 1, "1", func(p *v1.Pod) {
		if p.Labels[identity.RoleLabel] == "server" {
			p.Labels[identity.RoleLabel] = "serverr"
		}
	})
	c.eventuallyWaits("a", "WaitingMembers")
	c.never("part of it", func() bool { return c.placed("a") != 0 })
}

func TestJobsAreKeptApart(t *testing.T) {
	c := newCluster(t, `{}`, node("n1", "8"), node("n2", "8"))
	c.gang("a", 1, 1, 2, 2)
	c.job("a", 2, "1")
	c.eventuallyPlaced("a", 4)
	c.gang("b", 1, 1, 2, 2)
	c.job("b", 2, "1")
	c.eventuallyPlaced("b", 4)
	if a, b := c.nodesOf("a")["a-worker-0"], c.nodesOf("b")["b-worker-0"]; a == b {
		t.Errorf("both on %s", a)
	}
}

func TestPodsOfNoGangUnderPressureAreScheduledAndBreakNoGang(t *testing.T) {
	c := newCluster(t, `{}`, node("n1", "4"), node("n2", "4"))
	for i := range 6 {
		name := string(rune('a' + i))
		c.gang(name, 1, 1, 2, 2)
		c.job(name, 2, "900m")
		c.otherPod("web-"+name, "100m")
	}
	c.eventually("all pods of no gang run", func() bool {
		for i := range 6 {
			if c.placed("web-"+string(rune('a'+i))) != 1 {
				return false
			}
		}
		return true
	})
	// Four of six have capacity. Whenever one has run it frees enough capacity for another, until all have.
	ran := map[string]bool{}
	for len(ran) < 6 {
		c.eventually("another gang runs, whole", func() bool {
			for i := range 6 {
				name := string(rune('a' + i))
				if !ran[name] && c.placed(name) == 4 {
					ran[name] = true
					c.removeJob(name)
					return true
				}
			}
			return false
		})
	}
}

func TestATaintOrASelectorKeepsAGangFromANode(t *testing.T) {
	tainted := node("n1", "8")
	tainted.Spec.Taints = []v1.Taint{{Key: "reserved", Effect: v1.TaintEffectNoSchedule}}
	labelled := node("n3", "8")
	labelled.Labels = map[string]string{"disk": "fast"}
	c := newCluster(t, `{}`, tainted, node("n2", "9"), labelled)
	c.gang("a", 1, 1, 1, 1)
	c.job("a", 1, "1", func(p *v1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "fast"} })
	c.eventuallyPlaced("a", 3)
	for pod, node := range c.nodesOf("a") {
		if node != "n3" {
			t.Errorf("%s is on %s", pod, node)
		}
	}
}

func TestANodeThatAnotherPluginRefusesIsPlannedAround(t *testing.T) {
	c := newCluster(t, `{}`, node("n1", "4"), node("n2", "8"), node("n3", "8"))
	// Three workers want the same host port: no resource, so the plan puts them together, and the ports plugin refuses the second one.
	c.gang("a", 1, 1, 3, 3)
	c.job("a", 3, "1", withPort)
	c.eventuallyPlaced("a", 5)
	nodes := map[string]bool{}
	for pod, node := range c.nodesOf("a") {
		if strings.Contains(pod, "worker") {
			nodes[node] = true
		}
	}
	if len(nodes) != 3 {
		t.Errorf("the workers are on %v", nodes)
	}
}

func TestANodeThatTakesSoManyMembersIsPlannedForSoMany(t *testing.T) {
	names := []string{"n1", "n2", "n3", "n4"}
	limits := map[string]int{"n1": 2, "n2": 0, "n3": 1}
	for _, one := range []struct {
		mask []bool
		want []string // of each member
	}{
		{nil, []string{"n1 n4", "n1 n4", "n3 n4", "n4"}},
		{[]bool{false, true, true, false}, []string{"n3", "", "", ""}},
	} {
		for place, want := range one.want {
			var found []string
			for i, may := range within(limits, names, one.mask, place, len(one.want)) {
				if may {
					found = append(found, names[i])
				}
			}
			if got := strings.Join(found, " "); got != want {
				t.Errorf("with %v member %d may use %q, not %q", one.mask, place, got, want)
			}
		}
	}
}

func TestAProfileWithoutTheGateIsCalledMisconfigured(t *testing.T) {
	g := &Gang{state: NewState(clock.RealClock{})}
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{identity.JobLabel: "a", identity.RoleLabel: "worker"}}}
	if _, status := g.PreFilter(context.Background(), nil, pod, nil); !strings.Contains(status.Message(), "without CoachGate") {
		t.Errorf("it says %q", status.Message())
	}
}

// withPort of the node, which a plan does not count: the stock NodePorts plugin refuses a node where it is taken.
func withPort(p *v1.Pod) {
	if role := p.Labels[identity.RoleLabel]; role == "" || role == string(identity.Worker) {
		p.Spec.Containers[0].Ports = []v1.ContainerPort{{ContainerPort: 80, HostPort: 8080}}
	}
}

// portTaken on a node by a pod of no gang.
func (c *cluster) portTaken(name, node string) {
	c.otherPod(name, "100m", withPort, func(p *v1.Pod) { p.Spec.NodeName = node })
}

func TestGangsThatAnotherPluginRefusedOnAllNodesWaitAndStartWhenItTakesThem(t *testing.T) {
	c := newCluster(t, `{}`, node("n1", "4"), node("n2", "4"))
	c.portTaken("web-1", "n1")
	c.portTaken("web-2", "n2")
	c.gang("a", 1, 1, 1, 1)
	c.gang("b", 1, 1, 1, 1)
	c.job("a", 1, "1", withPort)
	if message := c.eventuallyWaits("a", "WaitingCapacity"); !strings.Contains(message, "NodePorts: node(s) didn't have free ports") {
		t.Errorf("not the words of the plugin: %s", message)
	}
	c.job("b", 1, "1", withPort)
	c.never("a part of them", func() bool { return c.placed("a")+c.placed("b") != 0 })
	c.remove("web-2")
	c.eventuallyPlaced("a", 3)
	c.eventuallyWaits("b", "WaitingCapacity")
	c.remove("web-1")
	c.eventuallyPlaced("b", 3)
}

func TestTheOneNodeOfManyThatNoPluginRefusesIsFound(t *testing.T) {
	c := newCluster(t, `{}`, node("free", "8")) // the plan takes the smaller ones first
	for i := range 2 * refusalsAtOnce {
		name := fmt.Sprint("n", i)
		c.create(node(name, "4"))
		c.portTaken("web-"+name, name)
	}
	c.gang("a", 1, 1, 1, 1)
	c.job("a", 1, "1", withPort)
	c.eventuallyPlaced("a", 3)
}
