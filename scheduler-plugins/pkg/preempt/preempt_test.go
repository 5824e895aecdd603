package preempt

import (
	"fmt"
	"math/rand"
	"slices"
	"testing"

	"coach.dev/scheduler-plugins/pkg/identity"
	"coach.dev/scheduler-plugins/pkg/planner"
)

func key(job string) identity.Key { return identity.Key{Namespace: "default", Job: job} }

// running is a victim that holds so many cores on a node.
type running struct {
	job       string
	node      int
	cores     int64
	grace     float64
	preempted int
	remaining float64
	boundary  bool
}

// scene is a cluster of nodes with so many cores, full of running gangs, and a gang that wants workers of so many cores.
func buildCase(nodes []int64, jobs []running) (*planner.Snapshot, []Running) {
	names, capacity, free := make([]string, len(nodes)), make([][]int64, len(nodes)), make([][]int64, len(nodes))
	for i, amount := range nodes {
		names[i], capacity[i], free[i] = fmt.Sprintf("n%d", i), []int64{amount}, []int64{amount}
	}
	s := planner.NewSnapshot(names, capacity, free, 1)
	var victims []Running
	for _, j := range jobs {
		s.Allocate(j.node, []int64{j.cores}, key(j.job))
		victims = append(victims, Running{Gang: key(j.job), Requests: []int64{j.cores}, GracePeriod: j.grace, Preempted: j.preempted,
			Remaining: j.remaining, BetweenEpochs: j.boundary, Draw: j.remaining})
	}
	return s, victims
}

func wants(workers int, cores int64) Preemptor {
	gang := &planner.Gang{Key: key("te"), Required: planner.Counts{0, 0, workers}}
	for i := range workers {
		gang.Members = append(gang.Members, planner.Member{Name: fmt.Sprint(i), Role: identity.Worker, Index: i, Request: []int64{cores}, Node: planner.NoNode})
	}
	return Preemptor{gang, gang.Required.Short(), true}
}

func TestScoresAreEquation1(t *testing.T) {
	s, victims := buildCase([]int64{8, 8}, []running{{job: "a", node: 0, cores: 8, grace: 3}, {job: "b", node: 1, cores: 2, grace: 12}})
	scores := Scores(s, victims, 4)
	if a, b := scores[key("a")], scores[key("b")]; a != 1+4*0.25 || b != 0.25+4 {
		t.Errorf("a %v, b %v", a, b)
	}
}

// Tables of choices are in tests/conformance/preempt.yaml, which the Python policy passes too.

// TestEveryChoiceIsSufficientAndMinimal draws scenes and checks each policy's choice against all sets of victims.
func TestEveryChoiceIsSufficientAndMinimal(t *testing.T) {
	chose := map[Policy]int{}
	for seed := range int64(3000) {
		checkChoices(t, seed, chose)
	}
	for _, policy := range Policies[1:] {
		if chose[policy] < 100 {
			t.Errorf("%s chose only %d times", policy, chose[policy])
		}
	}
}

// FuzzChoose checks the scene of any seed.
func FuzzChoose(f *testing.F) {
	f.Add(int64(1))
	f.Fuzz(func(t *testing.T, seed int64) { checkChoices(t, seed, map[Policy]int{}) })
}

// checkChoices in the scene of a seed, and count them.
func checkChoices(t *testing.T, seed int64, chose map[Policy]int) {
	random := rand.New(rand.NewSource(seed))
	nodes := make([]int64, 1+random.Intn(4))
	var jobs []running
	for n := range nodes {
		nodes[n] = int64(2 + random.Intn(6))
		left := nodes[n]
		for i := range 2 {
			cores := int64(1 + random.Intn(int(nodes[n])))
			if cores <= left {
				jobs = append(jobs, running{fmt.Sprintf("%d-%d", n, i), n, cores, float64(random.Intn(4)), random.Intn(3), float64(random.Intn(9)), random.Intn(4) == 0})
				left -= cores
			}
		}
	}
	s, victims := buildCase(nodes, jobs)
	preemptor := wants(1+random.Intn(2), int64(1+random.Intn(6)))
	if fitsWithout(s, preemptor, nil) {
		return
	}
	for _, policy := range Policies[1:] {
		chosen := Choose(s, preemptor, victims, Settings{policy, 4, 2})
		var picked, allowed []Running
		for _, v := range victims {
			if v.Preempted < 2 {
				allowed = append(allowed, v)
			}
			if slices.Contains(chosen, v.Gang) {
				picked = append(picked, v)
			}
		}
		if possible := fitsWithout(s, preemptor, allowed); possible != (len(chosen) > 0) {
			t.Fatalf("seed %d: %s chose %v; possible at all: %v", seed, policy, chosen, possible)
		}
		if len(chosen) == 0 {
			continue
		}
		chose[policy]++
		if !fitsWithout(s, preemptor, picked) {
			t.Fatalf("seed %d: %s: %v do not free enough capacity", seed, policy, chosen)
		}
		for i, v := range picked {
			if v.Preempted >= 2 {
				t.Fatalf("seed %d: %s: %s was preempted too often", seed, policy, v.Gang)
			}
			if fitsWithout(s, preemptor, slices.Delete(slices.Clone(picked), i, i+1)) {
				t.Fatalf("seed %d: %s: %v is not minimal", seed, policy, chosen)
			}
		}
	}
}
