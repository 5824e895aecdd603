package preempt

import (
	"fmt"
	"math/rand"
	"testing"

	"coach.dev/scheduler-plugins/pkg/identity"
	"coach.dev/scheduler-plugins/pkg/planner"
	"coach.dev/scheduler-plugins/pkg/reason"
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
func scene(nodes []int64, jobs []running) (*planner.Snapshot, []Victim) {
	names, capacity, free := make([]string, len(nodes)), make([][]int64, len(nodes)), make([][]int64, len(nodes))
	for i, amount := range nodes {
		names[i], capacity[i], free[i] = fmt.Sprintf("n%d", i), []int64{amount}, []int64{amount}
	}
	s := planner.NewSnapshot(names, capacity, free, 1)
	var victims []Victim
	for _, j := range jobs {
		s.Take(j.node, []int64{j.cores}, key(j.job))
		victims = append(victims, Victim{Gang: key(j.job), Demand: []int64{j.cores}, Grace: j.grace, Preempted: j.preempted,
			Remaining: j.remaining, AtBoundary: j.boundary})
	}
	return s, victims
}

func wants(workers int, cores int64) (*planner.Gang, []reason.Count) {
	gang := &planner.Gang{Key: key("te"), Needed: planner.Counts{0, 0, workers}}
	for i := range workers {
		gang.Members = append(gang.Members, planner.Member{Name: fmt.Sprint(i), Role: identity.Worker, Index: i, Request: []int64{cores}, Node: planner.NoNode})
	}
	return gang, gang.Needed.Short()
}

func TestChoose(t *testing.T) {
	tests := map[string]struct {
		nodes    []int64
		jobs     []running
		workers  int
		cores    int64
		settings Settings
		want     string
	}{
		"fitgpp: the smallest that makes room by itself": {[]int64{4, 8}, []running{{job: "small", node: 0, cores: 4, grace: 1}, {job: "large", node: 1, cores: 8, grace: 1}},
			1, 4, Settings{FitGpp, 4, 1, 0}, "[default/small]"},
		"fitgpp: not a smaller one that does not": {[]int64{2, 8}, []running{{job: "small", node: 0, cores: 2, grace: 1}, {job: "large", node: 1, cores: 8, grace: 1}},
			1, 4, Settings{FitGpp, 4, 1, 0}, "[default/large]"},
		"fitgpp: a short grace period outweighs the size by s": {[]int64{4, 8}, []running{{job: "small", node: 0, cores: 4, grace: 10}, {job: "large", node: 1, cores: 8, grace: 5}},
			1, 4, Settings{FitGpp, 4, 1, 0}, "[default/large]"},
		"fitgpp: with s = 0 only the size counts": {[]int64{4, 8}, []running{{job: "small", node: 0, cores: 4, grace: 10}, {job: "large", node: 1, cores: 8, grace: 5}},
			1, 4, Settings{FitGpp, 0, 1, 0}, "[default/small]"},
		"fitgpp: nobody more than P times": {[]int64{4, 8}, []running{{job: "small", node: 0, cores: 4, preempted: 1}, {job: "large", node: 1, cores: 8}},
			1, 4, Settings{FitGpp, 4, 1, 0}, "[default/large]"},
		"what is free on the victim's node counts": {[]int64{6}, []running{{job: "a", node: 0, cores: 4}},
			1, 6, Settings{FitGpp, 4, 1, 0}, "[default/a]"},
		"several where one is not enough": {[]int64{4, 4, 4}, []running{{job: "a", node: 0, cores: 4}, {job: "b", node: 1, cores: 4}, {job: "c", node: 2, cores: 4}},
			2, 4, Settings{FitGpp, 4, 1, 0}, "[default/a default/b]"},
		"nobody where even all are not enough": {[]int64{4}, []running{{job: "a", node: 0, cores: 4}}, 1, 5, Settings{FitGpp, 4, 1, 0}, "[]"},
		"nobody when the knob says never":      {[]int64{4}, []running{{job: "a", node: 0, cores: 4}}, 1, 4, Settings{Never, 4, 1, 0}, "[]"},
		"a gang at an epoch boundary first": {[]int64{4, 8}, []running{{job: "small", node: 0, cores: 4}, {job: "large", node: 1, cores: 8, boundary: true}},
			1, 4, Settings{FitGpp, 4, 1, 0}, "[default/large]"},
		"lrtp: the longest remaining": {[]int64{4, 4}, []running{{job: "a", node: 0, cores: 4, remaining: 10}, {job: "b", node: 1, cores: 4, remaining: 20}},
			1, 4, Settings{LRTP, 4, 1, 0}, "[default/b]"},
		"lrtp: and then nobody who is not in the way": {[]int64{4, 8}, []running{{job: "a", node: 0, cores: 4, remaining: 30}, {job: "b", node: 1, cores: 8, remaining: 20}},
			1, 8, Settings{LRTP, 4, 1, 0}, "[default/b]"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s, victims := scene(test.nodes, test.jobs)
			gang, missing := wants(test.workers, test.cores)
			if got := fmt.Sprint(Choose(s, gang, missing, victims, test.settings)); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}

func TestScoresAreEquation1(t *testing.T) {
	s, victims := scene([]int64{8, 8}, []running{{job: "a", node: 0, cores: 8, grace: 3}, {job: "b", node: 1, cores: 2, grace: 12}})
	scores := Scores(s, victims, 4)
	if a, b := scores[key("a")], scores[key("b")]; a != 1+4*0.25 || b != 0.25+4 {
		t.Errorf("a %v, b %v", a, b)
	}
}

// TestEveryChoiceIsSufficientAndMinimal draws scenes and checks each policy's choice against all sets of victims.
func TestEveryChoiceIsSufficientAndMinimal(t *testing.T) {
	random := rand.New(rand.NewSource(1))
	chose := map[Policy]int{}
	for range 3000 {
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
		s, victims := scene(nodes, jobs)
		gang, missing := wants(1+random.Intn(2), int64(1+random.Intn(6)))
		if planner.FitsMissing(s, gang, missing) {
			continue
		}
		for _, policy := range Policies[1:] {
			chosen := Choose(s, gang, missing, victims, Settings{policy, 4, 2, 7})
			var picked, allowed []Victim
			for _, v := range victims {
				if v.Preempted < 2 {
					allowed = append(allowed, v)
				}
				for _, k := range chosen {
					if v.Gang == k {
						picked = append(picked, v)
					}
				}
			}
			if possible := fitsWithout(s, gang, missing, allowed); possible != (len(chosen) > 0) {
				t.Fatalf("%s chose %v; possible at all: %v", policy, chosen, possible)
			}
			if len(chosen) == 0 {
				continue
			}
			chose[policy]++
			if !fitsWithout(s, gang, missing, picked) {
				t.Fatalf("%s: %v do not make room", policy, chosen)
			}
			for i, v := range picked {
				if v.Preempted >= 2 {
					t.Fatalf("%s: %s was preempted too often", policy, v.Gang)
				}
				if fitsWithout(s, gang, missing, append(append([]Victim(nil), picked[:i]...), picked[i+1:]...)) {
					t.Fatalf("%s: %v is not minimal", policy, chosen)
				}
			}
		}
	}
	for _, policy := range Policies[1:] {
		if chose[policy] < 100 {
			t.Errorf("%s chose only %d times", policy, chose[policy])
		}
	}
}
