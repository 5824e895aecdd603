package gangstate

import (
	"fmt"
	"math/rand"
	"reflect"
	"testing"
	"time"

	"coach.dev/scheduler-plugins/pkg/identity"
)

var start = time.Unix(1000, 0)

func pod(job string, role identity.Role, index int, node string) Pod {
	name := fmt.Sprintf("%s-%s-%d", job, role, index)
	return Pod{UID: name, Name: name, Gang: key(job), Role: role, Index: index, Node: node, Request: Amount{"cpu": 1000}}
}

func key(job string) identity.Key { return identity.Key{Namespace: "default", Job: job} }

func ledgerOf(pods ...Pod) *Ledger {
	l := New()
	for _, p := range pods {
		l.Observe(p, start)
	}
	return l
}

func TestTheLifeOfAPlan(t *testing.T) {
	a0, a1 := pod("a", identity.Server, 0, ""), pod("a", identity.Worker, 0, "")
	l := ledgerOf(a0, a1)
	l.Plan([]Seat{{Pod: a0, Node: "n"}, {Pod: a1, Node: "n"}}, start)
	if got := l.Kept("n", key("b"), 0); got["cpu"] != 2000 || !l.KeepsAny() {
		t.Errorf("planned seats keep their room: %v", got)
	}
	if got := l.Kept("n", key("a"), 0); got != nil {
		t.Errorf("not against their own gang: %v", got)
	}
	if n, late := l.OnTheWay(start.Add(time.Second), 5*time.Second), l.OnTheWay(start.Add(5*time.Second), 5*time.Second); n != 2 || late != 0 {
		t.Errorf("%d pods are on their way, and %d after five seconds", n, late)
	}
	if held, binding := l.Unbound(start.Add(time.Second)); held != 2 || binding != 0 {
		t.Errorf("two cores are kept for a second: %v, %v", held, binding)
	}
	if !l.Reserve(a0.UID, "n") || l.Kept("n", key("b"), 0)["cpu"] != 1000 {
		t.Error("what the scheduler's cache counts is not kept twice")
	}
	if _, complete := l.Release(key("a"), start.Add(time.Second)); complete {
		t.Error("released before the last sibling was reserved")
	}
	l.Reserve(a1.UID, "n")
	if released, complete := l.Release(key("a"), start.Add(time.Second)); !complete || len(released) != 2 || l.KeepsAny() {
		t.Errorf("released %v, %v", released, complete)
	}
	if reserved, dropped := l.Drop(key("a"), start); len(reserved) != 0 || dropped != 0 {
		t.Error("what is released is not called back")
	}
	a0.Node, a1.Node = "n", "n"
	l.Observe(a0, start.Add(2*time.Second))
	l.Observe(a1, start.Add(3*time.Second))
	bound, asking, seats := l.Members(key("a"))
	if len(bound) != 2 || len(asking) != 0 || len(seats) != 0 {
		t.Errorf("bound %v, asking %v, seats %v", bound, asking, seats)
	}
	if held, binding := l.Unbound(start.Add(9 * time.Second)); held != 2 || binding != 3 {
		t.Errorf("two cores were held for a second, and one and two more seconds passed until they were bound: %v, %v", held, binding)
	}
	if jobs := l.Jobs([]string{"n", "m"}); jobs[0][key("a")] != 2 || jobs[1] != nil {
		t.Errorf("jobs %v", jobs)
	}
}

func TestDroppingAPlanTellsWhomToCallBack(t *testing.T) {
	a0, a1 := pod("a", identity.Server, 0, ""), pod("a", identity.Worker, 0, "")
	l := ledgerOf(a0, a1)
	l.Plan([]Seat{{Pod: a0, Node: "n"}, {Pod: a1, Node: "m"}}, start)
	l.Reserve(a0.UID, "n")
	if reserved, dropped := l.Drop(key("a"), start); !reflect.DeepEqual(reserved, []string{a0.UID}) || dropped != 2 {
		t.Errorf("reserved %v, dropped %d", reserved, dropped)
	}
	if l.Reserve(a1.UID, "m") {
		t.Error("a dropped seat can be reserved")
	}
	if l.KeepsAny() || l.Jobs([]string{"n"})[0] != nil {
		t.Error("something is left")
	}
}

func TestAPodIsReservedOnlyWhereItsPlanSays(t *testing.T) {
	a := pod("a", identity.Worker, 0, "")
	l := ledgerOf(a)
	l.Plan([]Seat{{Pod: a, Node: "n"}}, start)
	if l.Reserve(a.UID, "elsewhere") {
		t.Error("reserved on a node that nobody planned")
	}
}

func TestAPlanKeepsItsRoomLikeANominatedPod(t *testing.T) {
	a := pod("a", identity.Worker, 0, "")
	a.Priority = 5
	l := ledgerOf(a)
	l.Plan([]Seat{{Pod: a, Node: "n"}}, start)
	if l.Kept("n", identity.Key{}, 5) == nil || l.Kept("n", identity.Key{}, 6) != nil {
		t.Error("against pods of the same priority and below, not against higher ones")
	}
}

func TestAGangIsForgottenWithItsLastPod(t *testing.T) {
	l := ledgerOf(pod("a", identity.Worker, 0, "n"), pod("a", identity.Worker, 1, ""))
	l.Forget("a-worker-0", start)
	if len(l.Gangs()) != 1 {
		t.Error("one pod is left")
	}
	l.Forget("a-worker-1", start)
	if _, known := l.Forget("a-worker-1", start); known || len(l.Gangs()) != 0 || len(l.jobs)+len(l.seats)+len(l.planned) != 0 {
		t.Errorf("left: %+v", l)
	}
}

func TestAPodThatIsLeavingHoldsItsRoomAndIsNoMember(t *testing.T) {
	p := pod("a", identity.Worker, 0, "n")
	p.Leaving = true
	l := ledgerOf(p)
	bound, asking, _ := l.Members(key("a"))
	if len(bound)+len(asking) != 0 || len(l.Holding(key("a"))["n"]) != 1 {
		t.Error("leaving")
	}
}

// TestRandomHistoriesLeaveNothingBehind plays random calls in any order and ends by forgetting every pod.
func TestRandomHistoriesLeaveNothingBehind(t *testing.T) {
	random := rand.New(rand.NewSource(1))
	for range 2000 {
		l := New()
		var all []Pod
		for i := range 6 {
			all = append(all, pod(string(rune('a'+i%2)), identity.Worker, i, ""))
		}
		for range 40 {
			p := all[random.Intn(len(all))]
			node := string(rune('x' + random.Intn(2)))
			switch random.Intn(8) {
			case 0, 1:
				l.Observe(p, start)
			case 2:
				p.Node = node
				l.Observe(p, start)
			case 3:
				l.Plan([]Seat{{Pod: p, Node: node}}, start)
			case 4:
				l.Reserve(p.UID, node)
			case 5:
				l.Release(p.Gang, start)
			case 6:
				l.Drop(p.Gang, start)
			case 7:
				l.Forget(p.UID, start)
			}
			keeps := 0
			for _, seats := range l.planned {
				keeps += len(seats)
			}
			if int64(keeps) != l.kept.Load() {
				t.Fatalf("%d seats are planned, the counter says %d", keeps, l.kept.Load())
			}
			for uid, seat := range l.seats {
				if _, alive := l.pods[uid]; !alive || seat.Pod.UID != uid {
					t.Fatalf("a seat for nobody: %+v", seat)
				}
			}
		}
		for _, p := range all {
			l.Forget(p.UID, start)
		}
		if len(l.pods)+len(l.gangs)+len(l.seats)+len(l.planned)+len(l.jobs) != 0 || l.KeepsAny() {
			t.Fatalf("left: %+v", l)
		}
	}
}
