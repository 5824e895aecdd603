package planner

import (
	"fmt"
	"math/rand"
	"slices"
	"testing"

	"coach.dev/scheduler-plugins/pkg/identity"
)

var me, other = identity.Key{Namespace: "default", Job: "me"}, identity.Key{Namespace: "default", Job: "other"}

// cores is a cluster of nodes n0, n1 ... with these many cores, all of them free.
func cores(amounts ...int64) *Snapshot {
	names, vectors := make([]string, len(amounts)), make([][]int64, len(amounts))
	for i, amount := range amounts {
		names[i], vectors[i] = fmt.Sprintf("n%d", i), []int64{amount}
	}
	return NewSnapshot(names, vectors, cloneAll(vectors), 1)
}

// with puts members of a job, which ask for nothing, on nodes.
func with(s *Snapshot, job identity.Key, nodes ...int) *Snapshot {
	for _, node := range nodes {
		s.Allocate(node, []int64{0}, job)
	}
	return s
}

func group(count int, request ...int64) Group {
	return Group{Role: identity.Worker, Count: count, Request: request}
}

func TestPack(t *testing.T) {
	barred := group(1, 1)
	barred.Eligible = []bool{false, true}
	tests := map[string]struct {
		snapshot *Snapshot
		groups   []Group
		want     string // places; "none" when not all members have one
	}{
		"a gang that fits on one node goes on one node":      {cores(2, 4), []Group{group(1, 1), group(1, 1), group(2, 1)}, "[[1] [1] [1 1]]"},
		"of two such nodes the fuller one":                   {cores(9, 4), []Group{group(4, 1)}, "[[1 1 1 1]]"},
		"three of four do not fit into 6+2+2+2":              {cores(6, 2, 2, 2), []Group{group(3, 4)}, "none"},
		"the sum fits and the pieces do not":                 {cores(1, 1), []Group{group(1, 2)}, "none"},
		"exactly full":                                       {cores(3, 2), []Group{group(1, 3), group(2, 1)}, "[[0] [1 1]]"},
		"an empty node before one with another job":          {with(cores(4, 4), other, 0), []Group{group(2, 1)}, "[[1 1]]"},
		"the job's own node before an empty one":             {with(cores(4, 4), me, 1), []Group{group(2, 1)}, "[[1 1]]"},
		"an empty node before the own one that is shared":    {with(with(cores(4, 4), me, 1), other, 1), []Group{group(2, 1)}, "[[0 0]]"},
		"two empty nodes before one that is shared":          {with(cores(2, 2, 9), other, 2), []Group{group(4, 1)}, "[[0 0 1 1]]"},
		"a node that a role may not use is not used":         {cores(4, 4), []Group{barred}, "[[1]]"},
		"nothing asked, nothing placed":                      {cores(1), []Group{group(0, 1)}, "[[]]"},
		"no nodes":                                           {cores(), []Group{group(1, 1)}, "none"},
		"a member that asks for nothing fits on a full node": {cores(0), []Group{group(2, 0)}, "[[0 0]]"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got := "none"
			if packing := Pack(test.snapshot, me, test.groups); packing.Complete {
				got = fmt.Sprint([][]int(packing.Placement))
			}
			if got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}

func TestAnOvercommittedNodeGivesNothing(t *testing.T) {
	s := NewSnapshot([]string{"n"}, [][]int64{{4}}, [][]int64{{-2}}, 1)
	if Pack(s, me, []Group{group(1, 1)}).Complete {
		t.Error("placed on less than nothing")
	}
}

func TestWhatTheTwoScoresTellApart(t *testing.T) {
	for _, test := range []struct {
		node          string
		own, others   bool
		thesis, coach int64
	}{
		{"holds the job alone", true, false, 100, 100},
		{"empty", false, false, 100, 66},
		{"holds the job and another", true, true, 0, 33},
		{"holds another job", false, true, 0, 0},
	} {
		preference := Preference(test.own, test.others)
		if thesis, coach := ThesisScore(preference), Score(preference); thesis != test.thesis || coach != test.coach {
			t.Errorf("%s: thesis %d, coach %d", test.node, thesis, coach)
		}
	}
}

func TestAWhatIfLeavesTheSnapshotAlone(t *testing.T) {
	s := with(cores(4), other, 0)
	s.UsageOf = func(job identity.Key) []Usage {
		if job == other {
			return []Usage{{0, []int64{2}}}
		}
		return nil
	}
	s.Free[0][0] = 2
	what := s.Copy()
	what.Release(other)
	what.Allocate(0, []int64{3}, me)
	if s.Free[0][0] != 2 || s.PreferenceOf(0, me) != OtherJobs || !s.UsesAny(other) || s.UsesAny(me) {
		t.Errorf("changed: %v", s)
	}
	if what.Free[0][0] != 1 || what.PreferenceOf(0, me) != Own || what.UsesAny(other) || !what.UsesAny(me) {
		t.Errorf("not done: %v", what)
	}
}

// problem draws a small cluster and gang.
func problem(random *rand.Rand) (*Snapshot, []Group) {
	dimensions := 1 + random.Intn(2)
	vector := func(limit int) []int64 {
		v := make([]int64, dimensions)
		for i := range v {
			v[i] = int64(random.Intn(limit))
		}
		return v
	}
	names, capacity := make([]string, 1+random.Intn(4)), [][]int64(nil)
	for i := range names {
		names[i] = fmt.Sprintf("n%d", i)
		capacity = append(capacity, vector(8))
	}
	s := NewSnapshot(names, capacity, cloneAll(capacity), dimensions)
	for n := range names {
		for _, job := range []identity.Key{me, other} {
			if random.Intn(3) == 0 {
				s.Allocate(n, make([]int64, dimensions), job)
			}
		}
	}
	groups := make([]Group, 1+random.Intn(3))
	members := 6
	for i := range groups {
		groups[i] = Group{Role: identity.Roles[i], Request: vector(5), Count: random.Intn(min(members, 3) + 1)}
		members -= groups[i].Count
		if random.Intn(3) == 0 {
			groups[i].Eligible = make([]bool, len(names))
			for n := range names {
				groups[i].Eligible[n] = random.Intn(3) > 0
			}
		}
	}
	return s, groups
}

// oracle tries every node for every member.
func oracle(s *Snapshot, groups []Group) bool {
	free := cloneAll(s.Free)
	var place func(g, member int) bool
	place = func(g, member int) bool {
		if g == len(groups) {
			return true
		}
		if member == groups[g].Count {
			return place(g+1, 0)
		}
		for n := range s.Names {
			if !groups[g].eligible(n) || fitCount(free[n], groups[g].Request, 1) == 0 {
				continue
			}
			subtract(free[n], groups[g].Request, 1)
			if place(g, member+1) {
				return true
			}
			subtract(free[n], groups[g].Request, -1)
		}
		return false
	}
	return place(0, 0)
}

// cheapest tries every node for every member and gives the least cost of a full placement.
func cheapest(s *Snapshot, groups []Group) cost {
	free, used := cloneAll(s.Free), make([]int, len(s.Names))
	best := cost{shared: 1 << 30}
	var place func(g, member int, spent cost)
	place = func(g, member int, spent cost) {
		for g < len(groups) && member == groups[g].Count {
			g, member = g+1, 0
		}
		if g == len(groups) {
			if spent.less(best) {
				best = spent
			}
			return
		}
		for n := range s.Names {
			if !groups[g].eligible(n) || fitCount(free[n], groups[g].Request, 1) == 0 {
				continue
			}
			next, preference := spent, s.PreferenceOf(n, me)
			if !preference.apart() {
				next.shared++
			}
			if !preference.own() && used[n] == 0 {
				next.opened++
			}
			subtract(free[n], groups[g].Request, 1)
			used[n]++
			place(g, member+1, next)
			used[n]--
			subtract(free[n], groups[g].Request, -1)
		}
	}
	place(0, 0, cost{})
	return best
}

func costOf(s *Snapshot, places Placement) cost {
	var spent cost
	opened := map[int]bool{}
	for _, group := range places {
		for _, n := range group {
			if !s.PreferenceOf(n, me).apart() {
				spent.shared++
			}
			if !s.PreferenceOf(n, me).own() {
				opened[n] = true
			}
		}
	}
	spent.opened = len(opened)
	return spent
}

func TestASmallGangIsPlacedAsApartAndOnAsFewNodesAsCanBe(t *testing.T) {
	random := rand.New(rand.NewSource(3))
	improved := 0
	for range 3000 {
		s, groups := problem(random)
		packing := Pack(s, me, groups)
		if members := packing.Placement.total(); !packing.Complete || members == 0 || members > 5 {
			continue
		}
		if got, want := costOf(s, packing.Placement), cheapest(s, groups); got != want {
			t.Fatalf("cost %+v, possible %+v\nfree %v\njobs %v\ngroups %+v\nplaces %v", got, want, s.Free, s.Jobs, groups, packing.Placement)
		}
		if places := fill(s, me, groups, bySize(s, groups)); places.total() == packing.Placement.total() && costOf(s, packing.Placement).less(costOf(s, places)) {
			improved++
		}
	}
	if improved == 0 {
		t.Error("the greedy way was always best: the cases are too easy")
	}
}

// valid fails when places break a rule: a member too many or too few, a node barred or over-committed.
func valid(t *testing.T, s *Snapshot, groups []Group, places Placement, complete bool) {
	t.Helper()
	free := cloneAll(s.Free)
	for g := range groups {
		if len(places[g]) > groups[g].Count || (complete && len(places[g]) < groups[g].Count) {
			t.Fatalf("group %d has %d places for %d members", g, len(places[g]), groups[g].Count)
		}
		for _, n := range places[g] {
			if !groups[g].eligible(n) || fitCount(free[n], groups[g].Request, 1) == 0 {
				t.Fatalf("no capacity on node %d: free %v, groups %+v, places %v", n, s.Free, groups, places)
			}
			subtract(free[n], groups[g].Request, 1)
		}
	}
}

// check holds Pack and its two searches against trying everything. It returns whether the greedy ways were not enough.
func check(t *testing.T, s *Snapshot, groups []Group) bool {
	t.Helper()
	want := oracle(s, groups)
	packing := Pack(s, me, groups)
	if packing.Complete != want || !packing.Exhaustive {
		t.Fatalf("Pack says %v, trying everything says %v\nfree %v\ngroups %+v", packing, want, s.Free, groups)
	}
	valid(t, s, groups, packing.Placement, packing.Complete)
	if places, decided := exact(s, me, groups); !decided || (places != nil) != want {
		t.Fatalf("exact says %v, trying everything says %v\nfree %v\ngroups %+v", places, want, s.Free, groups)
	} else if want {
		valid(t, s, groups, places, true)
	}
	order := bySize(s, groups)
	full := func(places Placement) bool {
		for g := range groups {
			if len(places[g]) < groups[g].Count {
				return false
			}
		}
		return true
	}
	return want && !full(fill(s, me, groups, order)) && !full(bestFit(s, me, groups, order))
}

func TestPackAgreesWithTryingEverything(t *testing.T) {
	random := rand.New(rand.NewSource(1))
	searched := 0
	for range 20000 {
		s, groups := problem(random)
		if check(t, s, groups) {
			searched++
		}
	}
	if searched == 0 {
		t.Error("no case needed a search: the cases are too easy")
	}
	t.Logf("a search was needed in %d of 20000 cases", searched)
}

func TestTheOrderOfTheGroupsDoesNotMatter(t *testing.T) {
	random := rand.New(rand.NewSource(2))
	for range 2000 {
		s, groups := problem(random)
		for i := range groups {
			groups[i].Count = min(groups[i].Count, 1)
		}
		rotated := slices.Clone(groups)
		slices.Reverse(rotated)
		one, two := Pack(s, me, groups), Pack(s, me, rotated)
		slices.Reverse(two.Placement)
		if one.Complete && fmt.Sprint(one.Placement) != fmt.Sprint(two.Placement) {
			t.Fatalf("%v and %v", one, two)
		}
	}
}

func TestManyMembersOnManyNodesAreStillDecided(t *testing.T) {
	// 40 nodes of 7, 40 members of 4 and 40 of 3: greedy fills find it; 41 members of 4 have no place, and 6-sized ones
	// block the count. The search member by member gives up on the last case, the enumeration of counts does not.
	amounts := make([]int64, 40)
	for i := range amounts {
		amounts[i] = 7
	}
	s := cores(amounts...)
	if !Pack(s, me, []Group{group(40, 4), group(40, 3)}).Complete {
		t.Error("4+3 on each of 40 nodes")
	}
	packing := Pack(s, me, []Group{group(39, 4), group(42, 3)})
	if packing.Complete || !packing.Exhaustive {
		t.Errorf("39 x 4 leaves 39 x 3 and 2 x 3: %v, %v", packing.Complete, packing.Exhaustive)
	}
}

func FuzzPack(f *testing.F) {
	f.Add(int64(1))
	f.Fuzz(func(t *testing.T, seed int64) {
		s, groups := problem(rand.New(rand.NewSource(seed)))
		check(t, s, groups)
	})
}

func BenchmarkPack(b *testing.B) {
	for _, size := range []struct{ nodes, workers int }{{1000, 2}, {5000, 2}, {5000, 98}, {7500, 2}, {7500, 98}} {
		b.Run(fmt.Sprintf("%d nodes, gang of %d", size.nodes, size.workers+2), func(b *testing.B) {
			names := make([]string, size.nodes)
			capacity, free := make([][]int64, size.nodes), make([][]int64, size.nodes)
			for i := range names {
				names[i] = fmt.Sprintf("%05d", i)
				capacity[i] = []int64{4000, 1 << 34, 110}
				free[i] = []int64{int64(i%5) * 1000, 1 << 34, 110}
			}
			s := NewSnapshot(names, capacity, free, 2)
			request := []int64{1000, 1 << 30, 1}
			groups := []Group{group(1, request...), group(1, request...), group(size.workers, request...)}
			for b.Loop() {
				if !Pack(s, me, groups).Complete {
					b.Fatal("no plan")
				}
			}
		})
	}
}
