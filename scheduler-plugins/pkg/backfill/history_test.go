package backfill

import (
	"fmt"
	"math/rand"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"coach.dev/scheduler-plugins/pkg/identity"
	"coach.dev/scheduler-plugins/pkg/order"
	"coach.dev/scheduler-plugins/pkg/planner"
	"coach.dev/scheduler-plugins/pkg/reason"
)

// history runs random gangs through a small cluster until all have ended: gangs arrive, start, grow, end; nodes do not change.
// After every round it checks what the scheduler promises.
type history struct {
	t        *testing.T
	random   *rand.Rand
	capacity [][]int64
	names    []string
	settings Settings
	now      float64
	jobs     []*job
	order    []string // jobs in the order of their start
	seen     *tally
}

// tally counts what histories went through, so that a reader can see that they were not idle.
type tally struct{ gangs, started, waited, passed, checked int }

type job struct {
	gang     planner.Gang // as it was submitted
	arrives  float64
	started  float64 // below zero: not yet
	ended    bool
	nodes    []int // of each member
	bypassed int
	waiting  float64 // since when for capacity; below zero: not waiting
	promised float64 // the earliest start that it was ever promised; below zero: none
}

func newHistory(t *testing.T, seed int64) *history {
	random := rand.New(rand.NewSource(seed))
	h := &history{t: t, random: random, seen: &tally{}}
	dimensions := 1 + random.Intn(2)
	vector := func(low, high int) []int64 {
		v := make([]int64, dimensions)
		for i := range v {
			v[i] = int64(low + random.Intn(high-low))
		}
		return v
	}
	for i := range 1 + random.Intn(4) {
		h.names = append(h.names, fmt.Sprintf("n%d", i))
		h.capacity = append(h.capacity, vector(2, 9))
	}
	h.settings = Settings{Policy: Policies[random.Intn(len(Policies))], Limits: NoLimits}
	if random.Intn(2) == 0 {
		h.settings.Limits = Limits{Bypasses: random.Intn(3), Age: float64(random.Intn(50))}
	}
	for i := range 1 + random.Intn(8) {
		name := string(rune('a' + i))
		j := &job{started: -1, waiting: -1, promised: -1, arrives: float64(random.Intn(40))}
		j.gang = planner.Gang{Key: key(name), Duration: float64(1 + random.Intn(30)),
			Order: order.Key{Priority: int32(random.Intn(2)), Since: int64(j.arrives), Gang: name}}
		for rank, role := range identity.Roles {
			request := vector(0, 4)
			members := 1 + random.Intn(2)
			j.gang.Required[rank] = 1 + random.Intn(members)
			for index := range members {
				j.gang.Members = append(j.gang.Members, planner.Member{Name: fmt.Sprint(name, role, index), Role: role, Index: index,
					Request: request, Node: planner.NoNode})
				j.nodes = append(j.nodes, planner.NoNode)
			}
		}
		h.jobs = append(h.jobs, j)
	}
	return h
}

// snapshot of what runs now.
func (h *history) snapshot() *planner.Snapshot {
	free := make([][]int64, len(h.capacity))
	for i := range free {
		free[i] = append([]int64(nil), h.capacity[i]...)
	}
	s := planner.NewSnapshot(h.names, h.capacity, free, len(h.capacity[0]))
	for _, j := range h.jobs {
		for m, node := range j.nodes {
			if node != planner.NoNode && !j.ended {
				s.Allocate(node, j.gang.Members[m].Request, j.gang.Key)
			}
		}
	}
	return s
}

// ask gives a job as the scheduler sees it: bound members settled, the others asking.
func (j *job) ask() (*planner.Gang, []int) {
	gang := j.gang
	gang.Members, gang.Bound = nil, nil
	var preemptor []int
	for m := range j.nodes {
		if j.nodes[m] != planner.NoNode {
			gang.Bound = append(gang.Bound, j.gang.Members[m])
		} else {
			gang.Members = append(gang.Members, j.gang.Members[m])
			preemptor = append(preemptor, m)
		}
	}
	return &gang, preemptor
}

// round plans all jobs that are there and carries the plans out.
func (h *history) round() {
	var gangs []*planner.Gang
	var preemptor [][]int
	var there []*job
	ends := map[identity.Key]float64{}
	for _, j := range h.jobs {
		if j.arrives > h.now || j.ended {
			continue
		}
		gang, members := j.ask()
		gangs, preemptor, there = append(gangs, gang), append(preemptor, members), append(there, j)
		if j.started >= 0 {
			ends[j.gang.Key] = j.started + j.gang.Duration - h.now
		}
	}
	settings := h.settings
	head := h.head(there)
	if head != nil {
		settings.Bypassed, settings.Waited = head.bypassed, h.now-head.waiting
	}
	limitReached := head != nil && settings.Limits.reached(settings.Bypassed, settings.Waited)
	plans := Queue(h.snapshot(), gangs, settings, ends, nil)
	h.oracle(gangs, plans)
	passed := 0
	for i, plan := range plans {
		j := there[i]
		j.waiting = waitingSince(j.waiting, h.now, plan.Pending)
		placed := gangs[i].Placed(&plan)
		if len(placed) == 0 {
			continue
		}
		if plan.Pending != nil {
			h.t.Fatalf("%s waits for %s and has places", j.gang.Key, plan.Pending.Token)
		}
		for _, m := range placed {
			j.nodes[preemptor[i][m]] = plan.Nodes[m]
		}
		if j.started < 0 {
			j.started = h.now
			h.order = append(h.order, j.gang.Key.Job)
			if head != nil && head != j && order.Less(&head.gang.Order, &j.gang.Order) {
				passed++
			}
		}
	}
	if head != nil && head.started < 0 {
		if passed > 0 && (limitReached || settings.Policy == Strict) {
			h.t.Fatalf("%d gangs passed %s under %+v", passed, head.gang.Key, settings)
		}
		head.bypassed += passed
		h.seen.passed += passed
	}
}

// oracle tries every node for every member where a reason can be checked on the cluster alone: a gang that is said never to fit, on
// the empty cluster; and the head, in a round in which no gang was placed, on what is free.
func (h *history) oracle(gangs []*planner.Gang, plans []planner.Plan) {
	noGang := true
	var head *planner.Gang
	for i, plan := range plans {
		noGang = noGang && len(gangs[i].Placed(&plan)) == 0
		if plan.Pending == nil {
			continue
		}
		if plan.Pending.Token.ClaimsCapacity() && (head == nil || order.Less(&gangs[i].Order, &head.Order)) {
			head = gangs[i]
		}
		if plan.Pending.Token == reason.NeverFits {
			h.check(gangs[i], h.capacity, "never fits")
		}
	}
	if noGang && head != nil {
		h.check(head, h.snapshot().Free, "waits for capacity")
	}
}

// deny fails if a gang's required members, the first of each role, fit into free in any way.
func (h *history) check(gang *planner.Gang, before [][]int64, claim string) {
	h.seen.checked++
	left := gang.Required
	var requests [][]int64
	for _, member := range gang.Bound {
		rank, _ := member.Role.Rank()
		left[rank]--
	}
	for _, member := range gang.Members {
		if rank, _ := member.Role.Rank(); left[rank] > 0 {
			left[rank]--
			requests = append(requests, member.Request)
		}
	}
	free := make([][]int64, len(before))
	for n := range before {
		free[n] = slices.Clone(before[n])
	}
	var place func(at int) bool
	place = func(at int) bool {
		if at == len(requests) {
			return true
		}
		for n := range free {
			if slices.ContainsFunc(dimensions(free[n]), func(d int) bool { return requests[at][d] > 0 && requests[at][d] > free[n][d] }) {
				continue
			}
			for d, amount := range requests[at] {
				free[n][d] -= amount
			}
			if place(at + 1) {
				return true
			}
			for d, amount := range requests[at] {
				free[n][d] += amount
			}
		}
		return false
	}
	if place(0) {
		h.t.Fatalf("%s %s by the planner, and has a placement: needs %v of %v, free %v", gang.Key, claim, gang.Required, requests, free)
	}
}

func dimensions(vector []int64) []int {
	indices := make([]int, len(vector))
	for d := range indices {
		indices[d] = d
	}
	return indices
}

// head is the first job in queue order that was waiting for capacity.
func (h *history) head(there []*job) *job {
	var head *job
	for _, j := range there {
		if j.waiting >= 0 && (head == nil || order.Less(&j.gang.Order, &head.gang.Order)) {
			head = j
		}
	}
	return head
}

func waitingSince(since, now float64, wait *reason.Reason) float64 {
	switch {
	case wait == nil || !wait.Token.ClaimsCapacity():
		return -1
	case since < 0:
		return now
	}
	return since
}

// invariants after every round: no partial gang, no over-commit.
func (h *history) invariants() {
	s := h.snapshot()
	for n, free := range s.Free {
		for _, amount := range free {
			if amount < 0 {
				h.t.Fatalf("node %s is over-committed: %v", h.names[n], free)
			}
		}
	}
	for _, j := range h.jobs {
		var have planner.Counts
		for m, node := range j.nodes {
			if node != planner.NoNode {
				rank, _ := j.gang.Members[m].Role.Rank()
				have[rank]++
			}
		}
		for rank, required := range j.gang.Required {
			if have.Total() > 0 && have[rank] < required {
				h.t.Fatalf("%s is partly placed: %v of %v", j.gang.Key, have, j.gang.Required)
			}
		}
	}
}

// tick ends what has run its time, and reports whether anything can still happen: a job runs, is to arrive, or could start.
func (h *history) tick() bool {
	going := h.now <= 41 // the last arrival, and the round after it
	for _, j := range h.jobs {
		if j.started >= 0 && !j.ended && h.now >= j.started+j.gang.Duration {
			j.ended, going = true, true
		}
		going = going || (j.started >= 0 && !j.ended)
	}
	return going
}

// run to the end. A job that fits the empty cluster must have started by then: no deadlock, no starvation.
func (h *history) run() {
	for h.now = 0; h.tick(); h.now++ {
		h.round()
		h.invariants()
	}
	for _, j := range h.jobs {
		h.seen.gangs++
		if j.started >= 0 {
			h.seen.started++
		}
		if j.started > j.arrives {
			h.seen.waited++
		}
		fits := planner.FitsMissing(h.empty(), &j.gang, j.gang.Required.Short())
		if fits != j.ended {
			h.t.Fatalf("%s: fits the empty cluster %v, ended %v (policy %s)", j.gang.Key, fits, j.ended, h.settings.Policy)
		}
	}
}

func (h *history) empty() *planner.Snapshot { return h.snapshot().Without() }

// TestHistories plays random histories, each from its seed. COACH_HISTORIES sets which: 300 for the first so many, 300-1000 for a part
// (the end excluded). benchmarks/decisions/scheduler_histories.py adds parts up to the 100,000 of results/scheduler.
func TestHistories(t *testing.T) {
	first, end := int64(0), int64(300)
	if text := os.Getenv("COACH_HISTORIES"); text != "" {
		var err error
		from, to, part := strings.Cut(text, "-")
		if !part {
			from, to = "0", text
		}
		if first, err = strconv.ParseInt(from, 10, 64); err != nil {
			t.Fatal(err)
		}
		if end, err = strconv.ParseInt(to, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	seen, seed := &tally{}, first
	defer func() {
		if t.Failed() {
			t.Logf("in the history of seed %d", seed)
		}
	}()
	for ; seed < end; seed++ {
		h := newHistory(t, seed)
		h.seen = seen
		h.run()
	}
	if seen.checked == 0 || seen.waited == 0 {
		t.Fatalf("the histories are idle: %+v", *seen)
	}
	t.Logf("histories %d-%d: gangs %d, started %d, waited %d, passed %d, verdicts checked %d", first, end, seen.gangs, seen.started, seen.waited, seen.passed,
		seen.checked)
}

// FuzzHistory plays the history of any seed.
func FuzzHistory(f *testing.F) {
	f.Add(int64(1))
	f.Fuzz(func(t *testing.T, seed int64) { newHistory(t, seed).run() })
}

// TestEasyNeverDelaysTheHead compares each head's start with what it was promised when it first waited, with exact lengths.
func TestEasyNeverDelaysTheHead(t *testing.T) {
	waited := 0
	for seed := range int64(300) {
		h := newHistory(t, seed)
		h.settings = Settings{Policy: Easy, Limits: NoLimits}
		for _, j := range h.jobs {
			j.gang.Order.Priority = 0 // a later job of a higher priority may delay anybody
		}
		for h.now = 0; h.tick(); h.now++ {
			h.round()
			head := h.head(h.jobs)
			if head == nil || head.promised >= 0 {
				continue
			}
			ends := map[identity.Key]float64{}
			for _, j := range h.jobs {
				if j.started >= 0 && !j.ended {
					ends[j.gang.Key] = j.started + j.gang.Duration - h.now
				}
			}
			gang, _ := head.ask()
			why := reason.Reason{Missing: gang.Required.Short()}
			head.promised = h.now + NewHead(h.snapshot(), gang, why, h.settings, ends).Start()
		}
		for _, j := range h.jobs {
			if j.promised < 0 {
				continue
			}
			waited++
			if j.started > j.promised {
				t.Fatalf("seed %d: %s was promised %v and started at %v", seed, j.gang.Key, j.promised, j.started)
			}
		}
	}
	if waited < 50 {
		t.Errorf("only %d heads waited: the histories are too easy", waited)
	}
}
