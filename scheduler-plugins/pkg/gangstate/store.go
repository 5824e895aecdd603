// Package gangstate keeps who of each gang is there, where they stand, and who is on the way to a node by a plan.
//
// It is the only memory that the scheduling decisions have, it holds nothing that the API server could not give again after a
// restart, and it forgets a gang with its last pod. One lock guards all of it; the plugins call it from the scheduling
// cycle, from binding goroutines and from informer handlers at once.
package gangstate

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"coach.dev/scheduler-plugins/pkg/identity"
)

// Amount of resources by name: thousandths of a core for cpu, whole units for everything else.
type Amount map[string]int64

// Pod is a live pod of a gang.
type Pod struct {
	UID      string
	Name     string
	Gang     identity.Key
	Role     identity.Role
	Index    int
	Priority int32
	Node     string // where it is bound; empty while it is not
	Leaving  bool   // being deleted: it holds its room, and is no member any more
	Request  Amount
}

// State of a seat.
type State int

const (
	Planned  State = iota // the room is kept by this ledger
	Reserved              // the scheduler's cache counts the pod; it waits for its siblings
	Released              // on its way to the API server; nothing calls it back
)

// Seat is a place on a node for one pod.
type Seat struct {
	Pod      Pod
	Node     string
	Wanted   bool // beyond the needed members: it waits for nobody and nobody waits for it
	Draining bool // victims still hold the room
	State    State
	Since    time.Time // of the plan, or of the release
}

// Ledger is empty as its zero value is not: use New.
type Ledger struct {
	mu      sync.RWMutex
	pods    map[string]Pod
	gangs   map[identity.Key]map[string]bool // UIDs of a gang's pods
	seats   map[string]*Seat                 // by UID
	planned map[string]map[string]*Seat      // by node, then UID: the seats whose room this ledger keeps
	jobs    map[string]map[identity.Key]int  // members on each node, bound or seated; inner maps are never changed in place
	held    float64                          // core-seconds of seats until they were released, or dropped before
	binding float64                          // core-seconds of seats from their release to their binding
	kept    atomic.Int64                     // how many seats are planned, readable without the lock
}

// New ledger with nothing in it.
func New() *Ledger {
	return &Ledger{pods: map[string]Pod{}, gangs: map[identity.Key]map[string]bool{}, seats: map[string]*Seat{},
		planned: map[string]map[string]*Seat{}, jobs: map[string]map[identity.Key]int{}}
}

// Observe adds a pod or takes note of how it changed, and reports whether that is news. A pod that got its node needs no seat any
// more.
func (l *Ledger) Observe(pod Pod, now time.Time) (news bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before, known := l.pods[pod.UID]
	if known {
		l.leave(before.Node, before.Gang)
	}
	if pod.Node != "" || pod.Leaving {
		l.unseat(pod.UID, now)
	}
	l.pods[pod.UID] = pod
	if l.gangs[pod.Gang] == nil {
		l.gangs[pod.Gang] = map[string]bool{}
	}
	l.gangs[pod.Gang][pod.UID] = true
	l.join(pod.Node, pod.Gang)
	return !known || before.Node != pod.Node || before.Leaving != pod.Leaving || !maps.Equal(before.Request, pod.Request)
}

// Forget a pod that is gone. It returns what was known of it.
func (l *Ledger) Forget(uid string, now time.Time) (Pod, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	pod, known := l.pods[uid]
	if !known {
		return Pod{}, false
	}
	l.unseat(uid, now)
	l.leave(pod.Node, pod.Gang)
	delete(l.pods, uid)
	if delete(l.gangs[pod.Gang], uid); len(l.gangs[pod.Gang]) == 0 {
		delete(l.gangs, pod.Gang)
	}
	return pod, true
}

// Members of a gang: bound ones, and the others with their seat, where they have one. Pods that are leaving are no members.
// Both lists are by index, then role, then name.
func (l *Ledger) Members(gang identity.Key) (bound []Pod, asking []Pod, seats map[string]Seat) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	seats = map[string]Seat{}
	for uid := range l.gangs[gang] {
		pod := l.pods[uid]
		switch {
		case pod.Leaving:
		case pod.Node != "":
			bound = append(bound, pod)
		default:
			asking = append(asking, pod)
			if seat := l.seats[uid]; seat != nil {
				seats[uid] = *seat
			}
		}
	}
	slices.SortFunc(bound, inOrder)
	slices.SortFunc(asking, inOrder)
	return bound, asking, seats
}

func inOrder(a, b Pod) int {
	x, _ := a.Role.Rank()
	y, _ := b.Role.Rank()
	return cmp.Or(a.Index-b.Index, x-y, cmp.Compare(a.Name, b.Name))
}

// Gangs that have a pod, by name.
func (l *Ledger) Gangs() []identity.Key {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return sorted(l.gangs)
}

// Plan keeps room for the pods of one gang that a plan gave nodes.
func (l *Ledger) Plan(seats []Seat, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range seats {
		seat := seats[i]
		if _, alive := l.pods[seat.Pod.UID]; !alive {
			continue // it went while the plan was made; the plan is dropped when its siblings notice
		}
		l.unseat(seat.Pod.UID, now)
		seat.State, seat.Since = Planned, now
		l.seats[seat.Pod.UID] = &seat
		if l.planned[seat.Node] == nil {
			l.planned[seat.Node] = map[string]*Seat{}
		}
		l.planned[seat.Node][seat.Pod.UID] = &seat
		l.kept.Add(1)
		l.join(seat.Node, seat.Pod.Gang)
	}
}

// SeatOf a pod.
func (l *Ledger) SeatOf(uid string) (Seat, bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if seat := l.seats[uid]; seat != nil {
		return *seat, true
	}
	return Seat{}, false
}

// Reserve notes that the scheduler's cache counts the pod from now on. false: its plan was dropped, or named another node.
func (l *Ledger) Reserve(uid, node string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	seat := l.seats[uid]
	if seat == nil || seat.Node != node {
		return false
	}
	if seat.State == Planned {
		l.letGo(seat)
		seat.State = Reserved
	}
	return true
}

// Release the needed seats of a gang once all of them are reserved, and return their UIDs. complete is false, and nothing
// is released, while a sibling is still on its way.
func (l *Ledger) Release(gang identity.Key, now time.Time) (released []string, complete bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for uid := range l.gangs[gang] {
		seat := l.seats[uid]
		if seat == nil || seat.Wanted {
			continue
		}
		if seat.State == Planned {
			return nil, false
		}
		released = append(released, uid)
	}
	for _, uid := range released {
		l.release(l.seats[uid], now)
	}
	return released, true
}

// ReleaseOne lets a single wanted pod go.
func (l *Ledger) ReleaseOne(uid string, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if seat := l.seats[uid]; seat != nil {
		l.release(seat, now)
	}
}

// release assumes the lock.
func (l *Ledger) release(seat *Seat, now time.Time) {
	if seat.State != Released {
		l.account(seat, now)
		seat.State = Released
	}
}

// Drop the plan of a gang: the seats that are not released yet. It returns the UIDs of those that were reserved, which
// somebody has to call back.
func (l *Ledger) Drop(gang identity.Key, now time.Time) (reserved []string, dropped int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for uid := range l.gangs[gang] {
		seat := l.seats[uid]
		if seat == nil || seat.State == Released {
			continue
		}
		if seat.State == Reserved {
			reserved = append(reserved, uid)
		}
		l.unseat(uid, now)
		dropped++
	}
	slices.Sort(reserved)
	return reserved, dropped
}

// Unseat one pod, whatever the state of its seat.
func (l *Ledger) Unseat(uid string, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unseat(uid, now)
}

// Arrived notes that the victims of a seat are gone and it is like any other.
func (l *Ledger) Arrived(uid string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if seat := l.seats[uid]; seat != nil {
		seat.Draining = false
	}
}

// KeepsAny reports, without the lock, whether any room is kept at all.
func (l *Ledger) KeepsAny() bool { return l.kept.Load() > 0 }

// Kept is the room that plans keep on a node against a pod of a gang (empty for a pod of none) and priority: as for the
// scheduler's own nominated pods, only plans of at least that priority count. nil for none.
func (l *Ledger) Kept(node string, gang identity.Key, priority int32) Amount {
	l.mu.RLock()
	defer l.mu.RUnlock()
	var sum Amount
	for _, seat := range l.planned[node] {
		if seat.Pod.Gang == gang || seat.Pod.Priority < priority {
			continue
		}
		if sum == nil {
			sum = Amount{}
		}
		for name, amount := range seat.Pod.Request {
			sum[name] += amount
		}
	}
	return sum
}

// Keeping lists the nodes on which plans keep room, by name.
func (l *Ledger) Keeping() []string {
	if !l.KeepsAny() {
		return nil
	}
	l.mu.RLock()
	defer l.mu.RUnlock()
	return slices.Sorted(maps.Keys(l.planned))
}

// PlannedOn lists the gangs with a seat on a node that is not released, by name.
func (l *Ledger) PlannedOn(node string) []identity.Key {
	l.mu.RLock()
	defer l.mu.RUnlock()
	gangs := map[identity.Key]bool{}
	for _, seat := range l.seats {
		if seat.Node == node && seat.State != Released {
			gangs[seat.Pod.Gang] = true
		}
	}
	return sorted(gangs)
}

// Jobs gives for each of the nodes how many members of each job stand there or are on their way. The maps must not be changed.
func (l *Ledger) Jobs(nodes []string) []map[identity.Key]int {
	l.mu.RLock()
	defer l.mu.RUnlock()
	jobs := make([]map[identity.Key]int, len(nodes))
	for i, node := range nodes {
		jobs[i] = l.jobs[node]
	}
	return jobs
}

// Holding gives what the pods of a gang hold, bound, leaving or seated, by node.
func (l *Ledger) Holding(gang identity.Key) map[string][]Amount {
	l.mu.RLock()
	defer l.mu.RUnlock()
	held := map[string][]Amount{}
	for uid := range l.gangs[gang] {
		node := l.pods[uid].Node
		if seat := l.seats[uid]; node == "" && seat != nil {
			node = seat.Node
		}
		if node != "" {
			held[node] = append(held[node], l.pods[uid].Request)
		}
	}
	return held
}

// Unbound is for how many core-seconds room was taken so far by pods that were not bound: held for the plan, until the gang was let
// go or the plan dropped, and then while the API server was told.
func (l *Ledger) Unbound(now time.Time) (held, binding float64) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	held, binding = l.held, l.binding
	for _, seat := range l.seats {
		if seat.State == Released {
			binding += seat.coreSeconds(now)
		} else {
			held += seat.coreSeconds(now)
		}
	}
	return held, binding
}

func (s *Seat) coreSeconds(now time.Time) float64 {
	return float64(s.Pod.Request["cpu"]) / 1000 * now.Sub(s.Since).Seconds()
}

// account adds what a seat took since the last time; it assumes the lock.
func (l *Ledger) account(seat *Seat, now time.Time) {
	if seat.State == Released {
		l.binding += seat.coreSeconds(now)
	} else {
		l.held += seat.coreSeconds(now)
	}
	seat.Since = now
}

// OnTheWay is how many pods have got a seat, or were let go, within a time and are not bound yet, without those that wait for victims.
func (l *Ledger) OnTheWay(now time.Time, within time.Duration) int {
	l.mu.RLock()
	defer l.mu.RUnlock()
	count := 0
	for _, seat := range l.seats {
		if !seat.Draining && now.Sub(seat.Since) < within {
			count++
		}
	}
	return count
}

// Stale lists gangs with a seat that is older than the limit and not released. A seat whose victims take their time is not stale.
func (l *Ledger) Stale(now time.Time, limit time.Duration) []identity.Key {
	l.mu.RLock()
	defer l.mu.RUnlock()
	stale := map[identity.Key]bool{}
	for _, seat := range l.seats {
		if seat.State != Released && !seat.Draining && now.Sub(seat.Since) > limit {
			stale[seat.Pod.Gang] = true
		}
	}
	return sorted(stale)
}

// sorted by name.
func sorted[V any](gangs map[identity.Key]V) []identity.Key {
	return slices.SortedFunc(maps.Keys(gangs), func(a, b identity.Key) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Job, b.Job))
	})
}

// unseat assumes the lock.
func (l *Ledger) unseat(uid string, now time.Time) {
	seat := l.seats[uid]
	if seat == nil {
		return
	}
	l.account(seat, now)
	if seat.State == Planned {
		l.letGo(seat)
	}
	delete(l.seats, uid)
	l.leave(seat.Node, seat.Pod.Gang)
}

// letGo of the room that this ledger keeps for a seat; it assumes the lock.
func (l *Ledger) letGo(seat *Seat) {
	if delete(l.planned[seat.Node], seat.Pod.UID); len(l.planned[seat.Node]) == 0 {
		delete(l.planned, seat.Node)
	}
	l.kept.Add(-1)
}

func (l *Ledger) join(node string, gang identity.Key)  { l.count(node, gang, 1) }
func (l *Ledger) leave(node string, gang identity.Key) { l.count(node, gang, -1) }

// count replaces the inner map, since readers hold on to it; it assumes the lock.
func (l *Ledger) count(node string, gang identity.Key, by int) {
	if node == "" {
		return
	}
	jobs := maps.Clone(l.jobs[node])
	if jobs == nil {
		jobs = map[identity.Key]int{}
	}
	if jobs[gang] += by; jobs[gang] <= 0 {
		delete(jobs, gang)
	}
	if l.jobs[node] = jobs; len(jobs) == 0 {
		delete(l.jobs, node)
	}
}

// Knows reports whether a pod is known.
func (l *Ledger) Knows(uid string) bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	_, known := l.pods[uid]
	return known
}
