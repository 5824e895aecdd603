package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

var speedColumns = []string{"nodes", "gang", "round", "contender", "way", "pods", "seconds", "pods_per_second", "gang_p50_seconds", "gang_p99_seconds",
	"writes_per_pod", "held_core_seconds_per_pod", "binding_core_seconds_per_pod", "memory_mib", "cpu_seconds"}

// speed of placing gangs that all fit.
type speed struct {
	way     string // live: gangs are created while they are placed; backlog: all were there when the scheduler started
	pods    int
	took    time.Duration // live: first creation to last binding; backlog: first binding to last
	gangs   []time.Duration
	writes  float64
	held    float64
	binding float64
	memory  float64
	cpu     float64
}

func (s *speed) row(contender string) []string {
	slices.Sort(s.gangs)
	at := func(share float64) string {
		if len(s.gangs) == 0 {
			return ""
		}
		return seconds(s.gangs[min(int(share*float64(len(s.gangs))), len(s.gangs)-1)])
	}
	return []string{contender, s.way, strconv.Itoa(s.pods), seconds(s.took),
		number(float64(s.pods)/s.took.Seconds(), 1), at(0.5), at(0.99), number(s.writes/float64(s.pods), 3), number(s.held/float64(s.pods), 4), number(s.binding/float64(s.pods), 4),
		number(s.memory, 0), number(s.cpu, 2)}
}

// speed of one contender: under load, and on a backlog.
func (c *cluster) speed(ctx context.Context, of contender) ([][]string, error) {
	s, err := of.start(c.Plane, *deploy)
	if err != nil {
		return nil, err
	}
	live, err := c.live(ctx, s)
	s.stop()
	if err != nil {
		return nil, err
	}
	backlog, err := c.backlog(ctx, of)
	if err != nil {
		return nil, err
	}
	return [][]string{live.row(of.name), backlog.row(of.name)}, nil
}

func (c *cluster) fill(ctx context.Context, of contender) (begin time.Time, last map[string]time.Time, err error) {
	last = map[string]time.Time{}
	var mu sync.Mutex
	begin = time.Now()
	err = each(*pods / *size, func(i int) error {
		g := gang{name: fmt.Sprintf("g%05d", i), members: *size, cores: oneCore}
		at, err := c.create(ctx, of, g)
		mu.Lock()
		last[g.name] = at
		mu.Unlock()
		return err
	})
	return begin, last, err
}

// allBound waits for the last binding and gives the first and the last.
func (c *cluster) allBound(want int) (first, last time.Time, err error) {
	err = c.until("all pods are bound", func() bool { bound, _ := c.seen(); return bound >= want })
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, at := range c.bound {
		if first.IsZero() || at.Before(first) {
			first = at
		}
		if at.After(last) {
			last = at
		}
	}
	return first, last, err
}

// live creates gangs while they are placed. A gang's time is from the creation of its last member to its last binding.
func (c *cluster) live(ctx context.Context, s *scheduler) (*speed, error) {
	writes, err := c.writes(ctx)
	if err != nil {
		return nil, err
	}
	held, binding := s.reserved()
	_, before := s.peak()
	done := s.record()
	begin, created, err := c.fill(ctx, s.contender)
	if err != nil {
		return nil, err
	}
	result := &speed{way: "live", pods: *pods / *size * *size}
	_, last, err := c.allBound(result.pods)
	if err != nil {
		return nil, err
	}
	done()
	result.took = last.Sub(begin)
	latest := map[string]time.Time{}
	c.mu.Lock()
	for pod, at := range c.bound {
		if g := pod[:strings.LastIndexByte(pod, '-')]; at.After(latest[g]) {
			latest[g] = at
		}
	}
	c.mu.Unlock()
	for g, at := range created {
		result.gangs = append(result.gangs, max(latest[g].Sub(at), 0))
	}
	time.Sleep(2 * time.Second) // events are written behind
	after, err := c.writes(ctx)
	if err != nil {
		return nil, err
	}
	result.writes = after - writes
	result.held, result.binding = s.reserved()
	result.held, result.binding = result.held-held, result.binding-binding
	result.memory, result.cpu = s.peak()
	result.cpu -= before
	return result, c.clear(ctx)
}

// backlog starts the scheduler on gangs that are all there. The clock runs from the first binding to the last.
func (c *cluster) backlog(ctx context.Context, of contender) (*speed, error) {
	if _, _, err := c.fill(ctx, of); err != nil {
		return nil, err
	}
	writes, err := c.writes(ctx)
	if err != nil {
		return nil, err
	}
	s, err := of.start(c.Plane, *deploy)
	if err != nil {
		return nil, err
	}
	defer s.stop()
	done := s.record()
	result := &speed{way: "backlog", pods: *pods / *size * *size}
	first, last, err := c.allBound(result.pods)
	if err != nil {
		return nil, err
	}
	done()
	result.took = last.Sub(first)
	time.Sleep(2 * time.Second)
	after, err := c.writes(ctx)
	if err != nil {
		return nil, err
	}
	result.writes = after - writes
	result.held, result.binding = s.reserved()
	result.memory, result.cpu = s.peak()
	return result, c.clear(ctx)
}

// record a CPU profile of this scheduler, where one is asked for, until the returned function is called.
func (s *scheduler) record() func() {
	if *profile == "" || s.name != "coach" {
		return func() {}
	}
	result := make(chan string, 1)
	go func() {
		text, err := s.get("/debug/pprof/profile?seconds=8")
		if err != nil {
			fmt.Fprintln(os.Stderr, "profile:", err)
		}
		result <- text
	}()
	return func() { _ = os.WriteFile(*profile, []byte(<-result), 0o644) }
}

var verdictColumns = []string{"nodes", "round", "contender", "kind", "verdict_seconds", "bound_after", "held_core_seconds", "writes"}

// impossible gangs. fragmented: the sum of what is free is enough, and no placement exists.
var impossible = []struct {
	name string
	gang gang
}{
	{"too large", gang{name: "large", members: 100, cores: func(member int) string {
		if member == 99 {
			return "9"
		}
		return "1"
	}}},
	{"fragmented", gang{name: "fragmented", members: fewNodes + 10, cores: func(int) string { return "5" }, selector: map[string]string{"few": "yes"}}},
}

// watched is for how long an impossible gang is left alone after its last member was created.
const watched = 8 * time.Second

// refusal is what became of a gang that cannot start.
type refusal struct {
	word   time.Duration // from the creation of the last member to the first condition after it that says why a pod is not scheduled
	bound  int
	held   float64
	writes float64
}

func (r *refusal) row(contender, kind string) []string {
	return []string{contender, kind, seconds(r.word), strconv.Itoa(r.bound), number(r.held, 2), number(r.writes, 0)}
}

// verdicts of one contender on the gangs that cannot start.
func (c *cluster) verdicts(ctx context.Context, of contender) ([][]string, error) {
	s, err := of.start(c.Plane, *deploy)
	if err != nil {
		return nil, err
	}
	defer s.stop()
	var rows [][]string
	for _, kind := range impossible {
		one, err := c.verdict(ctx, s, kind)
		if err != nil {
			return nil, err
		}
		rows = append(rows, one.row(of.name, kind.name))
	}
	return rows, nil
}

func (c *cluster) verdict(ctx context.Context, s *scheduler, kind struct {
	name string
	gang gang
}) (*refusal, error) {
	writes, err := c.writes(ctx)
	if err != nil {
		return nil, err
	}
	held, _ := s.reserved()
	created, err := c.create(ctx, s.contender, kind.gang)
	if err != nil {
		return nil, err
	}
	if err := c.until("a verdict", func() bool { _, there := c.verdictAfter(s.contender, created); return there }); err != nil {
		return nil, err
	}
	time.Sleep(time.Until(created.Add(watched)))
	result := &refusal{}
	first, _ := c.verdictAfter(s.contender, created)
	result.bound, _ = c.seen()
	result.word = first.at.Sub(created)
	fmt.Printf("%s: %s: %s\n", s.name, first.pod, first.message)
	after, err := c.writes(ctx)
	if err != nil {
		return nil, err
	}
	result.writes = after - writes
	result.held, _ = s.reserved()
	result.held -= held
	return result, c.clear(ctx)
}
