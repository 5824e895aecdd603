// Package conformance runs tests/conformance/*.yaml, the very files that coach/core/gang passes in Python, against the
// pure packages. The format is described in tests/conformance/README.md.
package conformance

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"coach.dev/scheduler-plugins/pkg/backfill"
	"coach.dev/scheduler-plugins/pkg/identity"
	"coach.dev/scheduler-plugins/pkg/order"
	"coach.dev/scheduler-plugins/pkg/planner"
	"coach.dev/scheduler-plugins/pkg/thesis"
)

// folder of the cases; COACH_CONFORMANCE names another one, for generated cases.
var folder = cmp.Or(os.Getenv("COACH_CONFORMANCE"), "../../../tests/conformance")

type file struct {
	Section string     `json:"section"`
	About   string     `json:"about"`
	Cases   []testCase `json:"cases"`
}

type testCase struct {
	Name     string             `json:"name"`
	About    string             `json:"about"`
	Pods     []pod              `json:"pods"`
	Order    []string           `json:"order"`
	Pod      pod                `json:"pod"`
	Queued   []pod              `json:"queued"`
	Bound    []pod              `json:"bound"`
	Passes   *bool              `json:"passes"`
	Scores   map[string]int64   `json:"scores"`
	Nodes    []node             `json:"nodes"`
	Gang     *gang              `json:"gang"`
	Gangs    []gang             `json:"gangs"`
	Draining []string           `json:"draining"`
	Backfill string             `json:"backfill"`
	Ends     map[string]float64 `json:"ends"`
	Expect   map[string]any     `json:"expect"`
	preemption
}

type pod struct {
	OtherJobs string  `json:"foreign"`
	Job       string  `json:"job"`
	Role      string  `json:"role"`
	Index     int     `json:"index"`
	Count     int     `json:"count"`
	CPU       float64 `json:"cpu"`
	Memory    float64 `json:"memory"`
	GPU       float64 `json:"gpu"`
	Priority  int32   `json:"priority"`
	Created   float64 `json:"created"`
	Node      string  `json:"node"`
}

type node struct {
	Name   string   `json:"name"`
	CPU    float64  `json:"cpu"`
	Memory *float64 `json:"memory"`
	GPU    float64  `json:"gpu"`
}

type gang struct {
	Job      string         `json:"job"`
	Priority int32          `json:"priority"`
	Created  float64        `json:"created"`
	Required map[string]int `json:"required"`
	Queued   []pod          `json:"queued"`
	Duration *float64       `json:"duration"`
}

func key(job string) identity.Key { return identity.Key{Namespace: "default", Job: job} }

func (p pod) name() string {
	if p.OtherJobs != "" {
		return p.OtherJobs
	}
	return fmt.Sprintf("%s-%s-%d", p.Job, p.Role, p.Index)
}

func (p pod) request() []int64 { return []int64{milli(p.CPU), milli(p.Memory), int64(p.GPU)} }

func milli(amount float64) int64 { return int64(math.Round(amount * 1000)) }

// spread turns count: n into n pods.
func spread(pods []pod) []pod {
	var all []pod
	for _, p := range pods {
		for i := range max(p.Count, 1) {
			one := p
			one.Index, one.Count = p.Index+i, 0
			all = append(all, one)
		}
	}
	return all
}

func words(amount []int64) string {
	var parts []string
	for i, unit := range []string{"cpu", "GiB", "gpu"} {
		if i < len(amount) && amount[i] != 0 {
			one := 1000.0
			if unit == "gpu" {
				one = 1
			}
			parts = append(parts, fmt.Sprintf("%.10g %s", float64(amount[i])/one, unit))
		}
	}
	if len(parts) == 0 {
		return "nothing"
	}
	return strings.Join(parts, " ")
}

func TestConformance(t *testing.T) {
	paths, err := filepath.Glob(filepath.Join(folder, "*.yaml"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no cases in %s: %v", folder, err)
	}
	sections := map[string]func(*testing.T, testCase){
		"queue-order": checkOrder, "filter": checkFilter, "score": checkScore, "plan": checkPlan, "queue": checkQueue, "preempt": checkPreempt,
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var f file
		if err := yaml.UnmarshalStrict(text, &f); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		check := sections[f.Section]
		if check == nil {
			t.Errorf("%s: no check for section %q", path, f.Section)
			continue
		}
		if len(f.Cases) == 0 {
			t.Errorf("%s has no cases", path)
		}
		for _, c := range f.Cases {
			t.Run(f.Section+"/"+c.Name, func(t *testing.T) { check(t, c) })
		}
	}
}

func checkOrder(t *testing.T, c testCase) {
	pods := spread(c.Pods)
	keyOf := func(p pod) *order.Key {
		return &order.Key{Priority: p.Priority, Since: int64(math.Round(p.Created * 1e9)), Name: p.name()}
	}
	for shift := range pods {
		rotated := append(slices.Clone(pods[shift:]), pods[:shift]...)
		slices.SortFunc(rotated, func(a, b pod) int {
			if order.Less(keyOf(a), keyOf(b)) {
				return -1
			}
			return 1
		})
		var got []string
		for _, p := range rotated {
			got = append(got, p.name())
		}
		if !reflect.DeepEqual(got, c.Order) {
			t.Fatalf("got %v, want %v", got, c.Order)
		}
	}
}

func members(pods []pod) []identity.Member {
	var members []identity.Member
	for _, p := range spread(pods) {
		if p.OtherJobs == "" {
			members = append(members, identity.Member{Gang: key(p.Job), Role: identity.Role(p.Role)})
		}
	}
	return members
}

func checkFilter(t *testing.T, c testCase) {
	passes := true // the rule is not asked about a pod that is not ours
	if c.Pod.OtherJobs == "" {
		passes = thesis.AllTypesPresent(members([]pod{c.Pod})[0], slices.Concat(members(c.Queued), members(c.Bound)))
	}
	if passes != *c.Passes {
		t.Errorf("passes: %v, want %v", passes, *c.Passes)
	}
}

func checkScore(t *testing.T, c testCase) {
	for name, want := range c.Scores {
		own, others := false, false
		for _, p := range spread(c.Bound) {
			if p.Node == name && p.OtherJobs == "" {
				own, others = own || p.Job == c.Pod.Job, others || p.Job != c.Pod.Job
			}
		}
		got := int64(planner.BestScore)
		if c.Pod.OtherJobs == "" {
			got = planner.ThesisScore(planner.Preference(own, others))
		}
		if got != want {
			t.Errorf("%s: got %d, want %d", name, got, want)
		}
	}
}

// scene builds the snapshot and the gangs of a case.
func buildCase(t *testing.T, c testCase, gangs []gang) (*planner.Snapshot, []*planner.Gang) {
	nodes := slices.Clone(c.Nodes)
	slices.SortFunc(nodes, func(a, b node) int { return strings.Compare(a.Name, b.Name) })
	names, capacity, free := make([]string, len(nodes)), make([][]int64, len(nodes)), make([][]int64, len(nodes))
	at := map[string]int{}
	for i, n := range nodes {
		memory := 1000.0
		if n.Memory != nil {
			memory = *n.Memory
		}
		names[i], at[n.Name] = n.Name, i
		capacity[i] = []int64{milli(n.CPU), milli(memory), int64(n.GPU)}
		free[i] = slices.Clone(capacity[i])
	}
	s := planner.NewSnapshot(names, capacity, free, 3)
	s.Devices = []string{"", "", "GPU"}
	s.Format, s.OtherPods = words, make([]int, len(nodes))
	bound := map[string][]planner.Member{}
	for _, p := range spread(c.Bound) {
		n, there := at[p.Node]
		switch {
		case !there:
		case p.OtherJobs != "":
			s.OtherPods[n]++
			for d, amount := range p.request() {
				s.Free[n][d] -= amount
			}
		default:
			s.Allocate(n, p.request(), key(p.Job))
			bound[p.Job] = append(bound[p.Job], planner.Member{Name: p.name(), Role: identity.Role(p.Role), Index: p.Index,
				Request: p.request(), Node: n})
		}
	}
	var asked []*planner.Gang
	for _, g := range gangs {
		one := &planner.Gang{Key: key(g.Job), Required: planner.Counts{1, 1, 1}, Bound: bound[g.Job], Duration: -1,
			Order: order.Key{Priority: g.Priority, Since: int64(math.Round(g.Created * 1e9)), Gang: g.Job}}
		if g.Required != nil {
			for rank, role := range identity.Roles {
				one.Required[rank] = g.Required[string(role)]
			}
		}
		if g.Duration != nil {
			one.Duration = *g.Duration
		}
		for _, p := range spread(g.Queued) {
			p.Job = g.Job
			member := planner.Member{Name: p.name(), Role: identity.Role(p.Role), Index: p.Index, Request: p.request(), Node: planner.NoNode}
			if n, there := at[p.Node]; there {
				member.Node = n
			}
			one.Members = append(one.Members, member)
		}
		asked = append(asked, one)
	}
	return s, asked
}

func checkPlan(t *testing.T, c testCase) {
	s, gangs := buildCase(t, c, []gang{*c.Gang})
	compare(t, s, gangs[0], backfill.Queue(s, gangs, backfill.Settings{Policy: backfill.Strict, Limits: backfill.NoLimits}, nil, keys(c.Draining))[0], c.Expect)
}

func checkQueue(t *testing.T, c testCase) {
	settings := backfill.Settings{Policy: backfill.Strict, Limits: backfill.NoLimits}
	if c.Backfill != "" {
		settings.Policy = backfill.Policy(c.Backfill)
	}
	if !slices.Contains(backfill.Policies[:], settings.Policy) {
		t.Fatalf("unknown backfill policy %q", c.Backfill)
	}
	ends := map[identity.Key]float64{}
	for job, end := range c.Ends {
		ends[key(job)] = end
	}
	s, gangs := buildCase(t, c, c.Gangs)
	plans := backfill.Queue(s, gangs, settings, ends, keys(c.Draining))
	if len(c.Expect) != len(gangs) {
		t.Errorf("%d gangs, %d outcomes expected", len(gangs), len(c.Expect))
	}
	for i, g := range gangs {
		compare(t, s, g, plans[i], c.Expect[g.Key.Job].(map[string]any))
	}
}

func keys(jobs []string) []identity.Key {
	var keys []identity.Key
	for _, job := range jobs {
		keys = append(keys, key(job))
	}
	return keys
}

// compare an outcome with what is given of the expected one.
func compare(t *testing.T, s *planner.Snapshot, g *planner.Gang, plan planner.Plan, expect map[string]any) {
	t.Helper()
	var got map[string]any
	if wait := plan.Pending; wait != nil {
		missing, blockers := map[string]any{}, []any{}
		for _, count := range wait.Missing {
			missing[string(count.Role)] = float64(count.Members)
		}
		for _, blocker := range wait.BlockedBy {
			blockers = append(blockers, blocker.Job)
		}
		got = map[string]any{"reason": string(wait.Token), "missing": missing, "best_partial": float64(wait.Partial),
			"blocked_by": blockers, "message": wait.Text}
	} else {
		placements, counts, unplaced := map[string]any{}, map[string]any{}, []any{}
		for m, n := range plan.Nodes {
			switch {
			case n != planner.NoNode:
				placements[g.Members[m].Name] = s.Names[n]
				before, _ := counts[s.Names[n]].(float64)
				counts[s.Names[n]] = before + 1
			case g.Members[m].Node == planner.NoNode:
				unplaced = append(unplaced, g.Members[m].Name)
			}
		}
		got = map[string]any{"placements": placements, "counts": counts, "unplaced": unplaced}
	}
	for field, want := range expect {
		value, given := got[field]
		if names, list := value.([]any); list {
			slices.SortFunc(names, func(a, b any) int { return strings.Compare(a.(string), b.(string)) })
		}
		if !given || !reflect.DeepEqual(value, want) {
			t.Errorf("job %s, %s: got %v, want %v (all: %v)", g.Key.Job, field, value, want, got)
		}
	}
}
