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
	return Pod{UID: name, Name: name, Gang: key(job), Role: role, Index: index, Node: node, Requests: Resources{"cpu": 1000}}
}

func key(job string) identity.Key { return identity.Key{Namespace: "default", Job: job} }

func storeOf(pods ...Pod) *Store {
	s := New()
	for _, p := range pods {
		s.Update(p, start)
	}
	return s
}

func TestTheStagesOfAPlan(t *testing.T) {
	a0, a1 := pod("a", identity.Server, 0, ""), pod("a", identity.Worker, 0, "")
	s := storeOf(a0, a1)
	s.Assign([]Assignment{{Pod: a0, Node: "n"}, {Pod: a1, Node: "n"}}, start)
	if got := s.PlannedRequests("n", key("b"), 0); got["cpu"] != 2000 || !s.ReservesCapacity() {
		t.Errorf("planned assignments reserve their capacity: %v", got)
	}
	if got := s.PlannedRequests("n", key("a"), 0); got != nil {
		t.Errorf("not against their own gang: %v", got)
	}
	if n, late := s.InFlight(start.Add(time.Second), 5*time.Second), s.InFlight(start.Add(5*time.Second), 5*time.Second); n != 2 || late != 0 {
		t.Errorf("%d pods are on their way, and %d after five seconds", n, late)
	}
	if held, binding := s.UnboundCoreSeconds(start.Add(time.Second)); held != 2 || binding != 0 {
		t.Errorf("two cores are reserved for a second: %v, %v", held, binding)
	}
	if !s.Reserve(a0.UID, "n") || s.PlannedRequests("n", key("b"), 0)["cpu"] != 1000 {
		t.Error("what the scheduler's cache counts is not reserved twice")
	}
	if _, complete := s.Permit(key("a"), start.Add(time.Second)); complete {
		t.Error("released before the last sibling was reserved")
	}
	s.Reserve(a1.UID, "n")
	if permitted, complete := s.Permit(key("a"), start.Add(time.Second)); !complete || len(permitted) != 2 || s.ReservesCapacity() {
		t.Errorf("released %v, %v", permitted, complete)
	}
	if reserved, dropped := s.DropPlan(key("a"), start); len(reserved) != 0 || dropped != 0 {
		t.Error("what is released is not called back")
	}
	a0.Node, a1.Node = "n", "n"
	s.Update(a0, start.Add(2*time.Second))
	s.Update(a1, start.Add(3*time.Second))
	bound, pending, assignments := s.Members(key("a"))
	if len(bound) != 2 || len(pending) != 0 || len(assignments) != 0 {
		t.Errorf("bound %v, pending %v, assignments %v", bound, pending, assignments)
	}
	if held, binding := s.UnboundCoreSeconds(start.Add(9 * time.Second)); held != 2 || binding != 3 {
		t.Errorf("two cores were held for a second, and one and two more seconds passed until they were bound: %v, %v", held, binding)
	}
	if members := s.GangsOn([]string{"n", "m"}); members[0][key("a")] != 2 || members[1] != nil {
		t.Errorf("jobs %v", members)
	}
}

func TestDroppingAPlanReturnsTheReservedPods(t *testing.T) {
	a0, a1 := pod("a", identity.Server, 0, ""), pod("a", identity.Worker, 0, "")
	s := storeOf(a0, a1)
	s.Assign([]Assignment{{Pod: a0, Node: "n"}, {Pod: a1, Node: "m"}}, start)
	s.Reserve(a0.UID, "n")
	if reserved, dropped := s.DropPlan(key("a"), start); !reflect.DeepEqual(reserved, []string{a0.UID}) || dropped != 2 {
		t.Errorf("reserved %v, dropped %d", reserved, dropped)
	}
	if s.Reserve(a1.UID, "m") {
		t.Error("a dropped assignment can be reserved")
	}
	if s.ReservesCapacity() || s.GangsOn([]string{"n"})[0] != nil {
		t.Error("something is left")
	}
}

func TestAPodIsReservedOnlyWhereItsPlanSays(t *testing.T) {
	a := pod("a", identity.Worker, 0, "")
	s := storeOf(a)
	s.Assign([]Assignment{{Pod: a, Node: "n"}}, start)
	if s.Reserve(a.UID, "elsewhere") {
		t.Error("reserved on a node that no plan assigned")
	}
}

func TestAPlanReservesItsCapacityLikeANominatedPod(t *testing.T) {
	a := pod("a", identity.Worker, 0, "")
	a.Priority = 5
	s := storeOf(a)
	s.Assign([]Assignment{{Pod: a, Node: "n"}}, start)
	if s.PlannedRequests("n", identity.Key{}, 5) == nil || s.PlannedRequests("n", identity.Key{}, 6) != nil {
		t.Error("against pods of the same priority and below, not against higher ones")
	}
}

func TestAGangIsForgottenWithItsLastPod(t *testing.T) {
	s := storeOf(pod("a", identity.Worker, 0, "n"), pod("a", identity.Worker, 1, ""))
	s.Delete("a-worker-0", start)
	if len(s.Gangs()) != 1 {
		t.Error("one pod is left")
	}
	s.Delete("a-worker-1", start)
	if _, known := s.Delete("a-worker-1", start); known || len(s.Gangs()) != 0 || len(s.members)+len(s.assignments)+len(s.planned) != 0 {
		t.Errorf("left: %+v", s)
	}
}

func TestAPodThatIsBeingDeletedHoldsItsCapacityAndIsNoMember(t *testing.T) {
	p := pod("a", identity.Worker, 0, "n")
	p.Deleting = true
	s := storeOf(p)
	bound, pending, _ := s.Members(key("a"))
	if len(bound)+len(pending) != 0 || len(s.RequestsOf(key("a"))["n"]) != 1 {
		t.Error("leaving")
	}
}

// TestRandomHistoriesLeaveNothingBehind plays random calls in any order and ends by forgetting every pod.
func TestRandomHistoriesLeaveNothingBehind(t *testing.T) {
	random := rand.New(rand.NewSource(1))
	for range 2000 {
		s := New()
		var all []Pod
		for i := range 6 {
			all = append(all, pod(string(rune('a'+i%2)), identity.Worker, i, ""))
		}
		for range 40 {
			p := all[random.Intn(len(all))]
			node := string(rune('x' + random.Intn(2)))
			switch random.Intn(8) {
			case 0, 1:
				s.Update(p, start)
			case 2:
				p.Node = node
				s.Update(p, start)
			case 3:
				s.Assign([]Assignment{{Pod: p, Node: node}}, start)
			case 4:
				s.Reserve(p.UID, node)
			case 5:
				s.Permit(p.Gang, start)
			case 6:
				s.DropPlan(p.Gang, start)
			case 7:
				s.Delete(p.UID, start)
			}
			plannedNow := 0
			for _, assignments := range s.planned {
				plannedNow += len(assignments)
			}
			if int64(plannedNow) != s.plannedCount.Load() {
				t.Fatalf("%d assignments are planned, the counter says %d", plannedNow, s.plannedCount.Load())
			}
			for uid, assignment := range s.assignments {
				if _, alive := s.pods[uid]; !alive || assignment.Pod.UID != uid {
					t.Fatalf("an assignment without a pod: %+v", assignment)
				}
			}
		}
		for _, p := range all {
			s.Delete(p.UID, start)
		}
		if len(s.pods)+len(s.gangs)+len(s.assignments)+len(s.planned)+len(s.members) != 0 || s.ReservesCapacity() {
			t.Fatalf("left: %+v", s)
		}
	}
}
