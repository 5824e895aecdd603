package backfill

import (
	"fmt"
	"strings"
	"testing"

	"coach.dev/scheduler-plugins/pkg/identity"
	"coach.dev/scheduler-plugins/pkg/order"
	"coach.dev/scheduler-plugins/pkg/planner"
	"coach.dev/scheduler-plugins/pkg/reason"
)

func key(job string) identity.Key { return identity.Key{Namespace: "default", Job: job} }

// gang needs a scheduler and a server of nothing and one worker of so many cores; more workers are optional.
func gang(job string, since int64, cores int64, workers int, length float64) *planner.Gang {
	g := &planner.Gang{Key: key(job), Order: order.Key{Since: since, Gang: job}, Required: planner.Counts{1, 1, 1}, Duration: length}
	add := func(role identity.Role, index int, amount int64) {
		g.Members = append(g.Members, planner.Member{Name: fmt.Sprintf("%s-%s-%d", job, role, index), Role: role, Index: index,
			Request: []int64{amount}, Node: planner.NoNode})
	}
	add(identity.Scheduler, 0, 0)
	add(identity.Server, 0, 0)
	for i := range workers {
		add(identity.Worker, i, cores)
	}
	return g
}

// cluster of nodes with so many cores, on which each job of running holds capacity.
func cluster(running map[string][2]int64, cores ...int64) *planner.Snapshot {
	names, capacity, free := make([]string, len(cores)), make([][]int64, len(cores)), make([][]int64, len(cores))
	for i, amount := range cores {
		names[i], capacity[i], free[i] = fmt.Sprintf("n%d", i), []int64{amount}, []int64{amount}
	}
	s := planner.NewSnapshot(names, capacity, free, 1)
	for job, hold := range running {
		s.Allocate(int(hold[0]), []int64{hold[1]}, key(job))
	}
	return s
}

// outcome prints "a:starts b:WaitingCapacity".
func outcome(gangs []*planner.Gang, plans []planner.Plan) string {
	var words []string
	for i, plan := range plans {
		word := fmt.Sprintf("%d placed", len(gangs[i].Placed(&plan)))
		if plan.Pending != nil {
			word = string(plan.Pending.Token)
		}
		words = append(words, gangs[i].Key.Job+": "+word)
	}
	return strings.Join(words, ", ")
}

func TestWhoMayPassTheHead(t *testing.T) {
	// One node of 4 cores, of which job r holds 2 for 60 s more; the head h wants all 4. A node of 2 besides.
	running := map[string][2]int64{"r": {0, 2}}
	ends := map[identity.Key]float64{key("r"): 60}
	tests := map[string]struct {
		nodes    []int64
		later    *planner.Gang
		settings Settings
		ends     map[identity.Key]float64
		want     string
	}{
		"strict: no gang": {[]int64{4}, gang("s", 2, 1, 1, 10), Settings{Policy: Strict, Limits: NoLimits}, ends,
			"h: WaitingCapacity, s: ShadowReserved"},
		"any: every gang that fits": {[]int64{4}, gang("s", 2, 1, 1, 1000), Settings{Policy: Any, Limits: NoLimits}, nil,
			"h: WaitingCapacity, s: 3 placed"},
		"easy: who ends before the head can start": {[]int64{4}, gang("s", 2, 1, 1, 60), Settings{Policy: Easy, Limits: NoLimits}, ends,
			"h: WaitingCapacity, s: 3 placed"},
		"easy: not who ends after it": {[]int64{4}, gang("s", 2, 1, 1, 61), Settings{Policy: Easy, Limits: NoLimits}, ends,
			"h: WaitingCapacity, s: ShadowReserved"},
		"easy: who leaves the head its nodes, however long": {[]int64{4, 2}, gang("s", 2, 2, 1, 1000), Settings{Policy: Easy, Limits: NoLimits}, ends,
			"h: WaitingCapacity, s: 3 placed"},
		"easy: without a predicted length nothing that is in the way": {[]int64{4}, gang("s", 2, 1, 1, -1), Settings{Policy: Easy, Limits: NoLimits}, ends,
			"h: WaitingCapacity, s: ShadowReserved"},
		"easy: without predicted ends no gang": {[]int64{4, 2}, gang("s", 2, 1, 1, 1), Settings{Policy: Easy, Limits: NoLimits}, nil,
			"h: WaitingCapacity, s: ShadowReserved"},
		"easy: no gang after the last bypass": {[]int64{4}, gang("s", 2, 1, 1, 1), Settings{Easy, Limits{Bypasses: 3, Age: -1}, 3, 0}, ends,
			"h: WaitingCapacity, s: ShadowReserved"},
		"easy: the last bypass itself": {[]int64{4}, gang("s", 2, 1, 1, 1), Settings{Easy, Limits{Bypasses: 3, Age: -1}, 2, 0}, ends,
			"h: WaitingCapacity, s: 3 placed"},
		"any: no gang when the head has waited too long": {[]int64{4}, gang("s", 2, 1, 1, 1), Settings{Any, Limits{Bypasses: -1, Age: 300}, 0, 300}, ends,
			"h: WaitingCapacity, s: ShadowReserved"},
		"pool: onto a node that the head cannot use": {[]int64{4, 2}, gang("s", 2, 2, 1, 1000), Settings{Policy: Pool, Limits: NoLimits}, nil,
			"h: WaitingCapacity, s: 3 placed"},
		"pool: not onto one that it can use": {[]int64{4, 4, 1}, gang("s", 2, 2, 1, 1), Settings{Policy: Pool, Limits: NoLimits}, ends,
			"h: WaitingCapacity, s: ShadowReserved"},
		"a later gang that has no capacity either waits for capacity": {[]int64{4}, gang("s", 2, 3, 1, 1), Settings{Policy: Pool, Limits: NoLimits}, ends,
			"h: WaitingCapacity, s: WaitingCapacity"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			held := map[string][2]int64{"r": running["r"]}
			if len(test.nodes) == 3 {
				held["q"] = [2]int64{1, 2} // the second large node is half taken too
			}
			gangs := []*planner.Gang{gang("h", 1, 4, 1, 100), test.later}
			if got := outcome(gangs, Queue(cluster(held, test.nodes...), gangs, test.settings, test.ends, nil)); got != test.want {
				t.Errorf("got %s; want %s", got, test.want)
			}
		})
	}
}

func TestTheQueueIsInOrderWhateverTheInput(t *testing.T) {
	early, late := gang("early", 1, 3, 1, -1), gang("late", 2, 3, 1, -1)
	urgent := gang("urgent", 9, 3, 1, -1)
	urgent.Order.Priority = 1
	gangs := []*planner.Gang{late, early, urgent}
	got := outcome(gangs, Queue(cluster(nil, 3, 3), gangs, Settings{Policy: Strict, Limits: NoLimits}, nil, nil))
	if want := "late: WaitingCapacity, early: 3 placed, urgent: 3 placed"; got != want {
		t.Errorf("got %s; want %s", got, want)
	}
}

func TestWantedMembersDoNotHoldUpTheNextGang(t *testing.T) {
	greedy, next := gang("greedy", 1, 1, 9, -1), gang("next", 2, 2, 1, -1)
	gangs := []*planner.Gang{greedy, next}
	got := outcome(gangs, Queue(cluster(nil, 4), gangs, Settings{Policy: Strict, Limits: NoLimits}, nil, nil))
	if want := "greedy: 4 placed, next: 3 placed"; got != want {
		t.Errorf("got %s; want %s", got, want)
	}
}

func TestAGangThatNeverFitsStandsInNobodysWay(t *testing.T) {
	gangs := []*planner.Gang{gang("huge", 1, 9, 1, -1), gang("small", 2, 1, 1, -1)}
	got := outcome(gangs, Queue(cluster(nil, 4), gangs, Settings{Policy: Strict, Limits: NoLimits}, nil, nil))
	if want := "huge: NeverFits, small: 3 placed"; got != want {
		t.Errorf("got %s; want %s", got, want)
	}
}

func TestAReservedGangIsToldByWhomAndHowLong(t *testing.T) {
	gangs := []*planner.Gang{gang("h", 1, 4, 1, -1), gang("s", 2, 1, 1, 61)}
	plans := Queue(cluster(map[string][2]int64{"r": {0, 2}}, 4), gangs, Settings{Policy: Easy, Limits: NoLimits},
		map[identity.Key]float64{key("r"): 60}, nil)
	wait := plans[1].Pending
	want := "ShadowReserved: fits, but job h is ahead: it needs 1 scheduler x [0], 1 server x [0], 1 worker x [4], best partial fit 2, " +
		"blocked by job r and starts in about 60 s; it starts after that job, or earlier where it does not delay it"
	if wait.Message() != want || wait.BlockedBy[0] != key("h") || wait.Token != reason.ShadowReserved {
		t.Errorf("got  %s\nwant %s", wait.Message(), want)
	}
}
