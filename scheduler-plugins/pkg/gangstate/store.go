// Package gangstate keeps the pods of each gang, the nodes to which they are bound, and the nodes that plans assign to them.
//
// It is the only memory of the scheduling decisions, holds nothing that could not be read from the API server again after a restart, and
// forgets a gang with its last pod. One lock guards all of it; the plugins call it concurrently from the scheduling cycle, from binding
// goroutines and from informer handlers.
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

// Resources are amounts by name: thousandths of a core for cpu, whole units for everything else.
type Resources map[string]int64

// Pod of a gang.
type Pod struct {
	UID      string
	Name     string
	Gang     identity.Key
	Role     identity.Role
	Index    int
	Priority int32
	Node     string // to which it is bound; empty while it is not
	Deleting bool   // it still holds its capacity, but counts as a member no more
	Requests Resources
}

// Phase of an assignment.
type Phase int

const (
	Planned   Phase = iota // this store reserves the capacity
	Reserved               // the scheduler's cache counts the pod, which waits for the other members
	Permitted              // it is being bound, and cannot be dropped any more
)

// Assignment of a pod to a node by a plan.
type Assignment struct {
	Pod           Pod
	Node          string
	Optional      bool // beyond the required members: it waits for no other member, and none waits for it
	AwaitsVictims bool // its capacity is still held by gangs that are being preempted
	Phase         Phase
	Since         time.Time // of the plan, or of Permit
}

// Store of all gangs; use New.
type Store struct {
	mu           sync.RWMutex
	pods         map[string]Pod
	gangs        map[identity.Key]map[string]bool  // UIDs of a gang's pods
	assignments  map[string]*Assignment            // by UID
	planned      map[string]map[string]*Assignment // by node, then UID: the assignments whose capacity this store reserves
	members      map[string]map[identity.Key]int   // on each node, bound or assigned; inner maps are never changed in place
	bound        map[string]map[string]bool        // by node: UIDs of the pods that are bound to it
	held         float64                           // core-seconds of assignments until Permit, or until they were dropped
	binding      float64                           // core-seconds of assignments from Permit to the binding
	plannedCount atomic.Int64                      // of assignments in phase Planned, readable without the lock
}

// New empty store.
func New() *Store {
	return &Store{pods: map[string]Pod{}, gangs: map[identity.Key]map[string]bool{}, assignments: map[string]*Assignment{},
		planned: map[string]map[string]*Assignment{}, members: map[string]map[identity.Key]int{}, bound: map[string]map[string]bool{}}
}

// Update adds or changes a pod, and reports whether anything changed that matters here. The assignment of a bound pod is deleted.
func (s *Store) Update(pod Pod, now time.Time) (changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, known := s.pods[pod.UID]
	if known {
		s.unbind(before)
	}
	if pod.Node != "" || pod.Deleting {
		s.unassign(pod.UID, now)
	}
	s.pods[pod.UID] = pod
	if s.gangs[pod.Gang] == nil {
		s.gangs[pod.Gang] = map[string]bool{}
	}
	s.gangs[pod.Gang][pod.UID] = true
	s.bind(pod)
	return !known || before.Node != pod.Node || before.Deleting != pod.Deleting || !maps.Equal(before.Requests, pod.Requests)
}

// Delete a pod that is gone, and return what was known of it.
func (s *Store) Delete(uid string, now time.Time) (Pod, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	pod, known := s.pods[uid]
	if !known {
		return Pod{}, false
	}
	s.unassign(uid, now)
	s.unbind(pod)
	delete(s.pods, uid)
	if delete(s.gangs[pod.Gang], uid); len(s.gangs[pod.Gang]) == 0 {
		delete(s.gangs, pod.Gang)
	}
	return pod, true
}

// Members of a gang: bound ones, and pending ones with their assignments. Pods that are being deleted are no members. Both lists are
// sorted by index, then role, then name.
func (s *Store) Members(gang identity.Key) (bound []Pod, pending []Pod, assignments map[string]Assignment) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	assignments = map[string]Assignment{}
	for uid := range s.gangs[gang] {
		pod := s.pods[uid]
		switch {
		case pod.Deleting:
		case pod.Node != "":
			bound = append(bound, pod)
		default:
			pending = append(pending, pod)
			if assignment := s.assignments[uid]; assignment != nil {
				assignments[uid] = *assignment
			}
		}
	}
	slices.SortFunc(bound, byIndex)
	slices.SortFunc(pending, byIndex)
	return bound, pending, assignments
}

func byIndex(a, b Pod) int {
	x, _ := a.Role.Rank()
	y, _ := b.Role.Rank()
	return cmp.Or(a.Index-b.Index, x-y, cmp.Compare(a.Name, b.Name))
}

// Gangs that have a pod, sorted.
func (s *Store) Gangs() []identity.Key {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return sorted(s.gangs)
}

// Assign nodes to the pods of one gang, and reserve their capacity.
func (s *Store) Assign(assignments []Assignment, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range assignments {
		assignment := assignments[i]
		if _, alive := s.pods[assignment.Pod.UID]; !alive {
			continue // it was deleted while the plan was made; Permit fails for the others
		}
		s.unassign(assignment.Pod.UID, now)
		assignment.Phase, assignment.Since = Planned, now
		s.assignments[assignment.Pod.UID] = &assignment
		if s.planned[assignment.Node] == nil {
			s.planned[assignment.Node] = map[string]*Assignment{}
		}
		s.planned[assignment.Node][assignment.Pod.UID] = &assignment
		s.plannedCount.Add(1)
		s.addMember(assignment.Node, assignment.Pod.Gang)
	}
}

// AssignmentOf a pod.
func (s *Store) AssignmentOf(uid string) (Assignment, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if assignment := s.assignments[uid]; assignment != nil {
		return *assignment, true
	}
	return Assignment{}, false
}

// ReservedOn a node is how many other members of a pod's role have passed all plugins there, in the plan that it belongs to.
func (s *Store) ReservedOn(node, uid string) int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	pod, count := s.assignments[uid], 0
	if pod == nil {
		return 0
	}
	for other := range s.gangs[pod.Pod.Gang] {
		if a := s.assignments[other]; a != nil && a.Node == node && a.Pod.Role == pod.Pod.Role && a.Phase == Reserved {
			count++
		}
	}
	return count
}

// Reserve a node for a pod: the scheduler's cache counts it from now on. false: its plan was dropped, or assigned another node.
func (s *Store) Reserve(uid, node string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	assignment := s.assignments[uid]
	if assignment == nil || assignment.Node != node {
		return false
	}
	if assignment.Phase == Planned {
		s.unplan(assignment)
		assignment.Phase = Reserved
	}
	return true
}

// Permit the required members of a gang once all of them are reserved, and return their UIDs. complete is false, and none is permitted,
// while one of them is not reserved.
func (s *Store) Permit(gang identity.Key, now time.Time) (permitted []string, complete bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for uid := range s.gangs[gang] {
		assignment := s.assignments[uid]
		if assignment == nil || assignment.Optional {
			continue
		}
		if assignment.Phase == Planned {
			return nil, false
		}
		permitted = append(permitted, uid)
	}
	for _, uid := range permitted {
		s.permit(s.assignments[uid], now)
	}
	return permitted, true
}

// PermitOne permits a single optional member.
func (s *Store) PermitOne(uid string, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if assignment := s.assignments[uid]; assignment != nil {
		s.permit(assignment, now)
	}
}

// permit one assignment; the caller holds mu.
func (s *Store) permit(assignment *Assignment, now time.Time) {
	if assignment.Phase != Permitted {
		s.account(assignment, now)
		assignment.Phase = Permitted
	}
}

// DropPlan deletes the assignments of a gang that are not permitted yet. It returns the UIDs of those that were reserved, which the
// caller has to reject in Permit.
func (s *Store) DropPlan(gang identity.Key, now time.Time) (reserved []string, dropped int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for uid := range s.gangs[gang] {
		assignment := s.assignments[uid]
		if assignment == nil || assignment.Phase == Permitted {
			continue
		}
		if assignment.Phase == Reserved {
			reserved = append(reserved, uid)
		}
		s.unassign(uid, now)
		dropped++
	}
	slices.Sort(reserved)
	return reserved, dropped
}

// Unassign one pod, whatever the phase of its assignment.
func (s *Store) Unassign(uid string, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unassign(uid, now)
}

// VictimsGone notes that the capacity of an assignment is free.
func (s *Store) VictimsGone(uid string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if assignment := s.assignments[uid]; assignment != nil {
		assignment.AwaitsVictims = false
	}
}

// ReservesCapacity reports, without the lock, whether any plan reserves capacity.
func (s *Store) ReservesCapacity() bool { return s.plannedCount.Load() > 0 }

// PlannedRequests is the capacity on a node that plans reserve from a pod of a gang (empty for a pod of none) and priority: as for
// the scheduler's nominated pods, only plans of at least that priority count. nil for none.
func (s *Store) PlannedRequests(node string, gang identity.Key, priority int32) Resources {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var sum Resources
	for _, assignment := range s.planned[node] {
		if assignment.Pod.Gang == gang || assignment.Pod.Priority < priority {
			continue
		}
		if sum == nil {
			sum = Resources{}
		}
		for name, amount := range assignment.Pod.Requests {
			sum[name] += amount
		}
	}
	return sum
}

// NodesWithPlans lists the nodes on which plans reserve capacity, sorted.
func (s *Store) NodesWithPlans() []string {
	if !s.ReservesCapacity() {
		return nil
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.Sorted(maps.Keys(s.planned))
}

// GangsPlannedOn lists the gangs with an assignment to a node that is not permitted, sorted.
func (s *Store) GangsPlannedOn(node string) []identity.Key {
	s.mu.RLock()
	defer s.mu.RUnlock()
	gangs := map[identity.Key]bool{}
	for _, assignment := range s.assignments {
		if assignment.Node == node && assignment.Phase != Permitted {
			gangs[assignment.Pod.Gang] = true
		}
	}
	return sorted(gangs)
}

// GangsOn gives for each of the nodes how many members of each gang are bound or assigned to it. The maps must not be changed.
func (s *Store) GangsOn(nodes []string) []map[identity.Key]int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	members := make([]map[identity.Key]int, len(nodes))
	for i, node := range nodes {
		members[i] = s.members[node]
	}
	return members
}

// BoundTo gives the pods of gangs that are bound to a node, also those being deleted, sorted by UID.
func (s *Store) BoundTo(node string) []Pod {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var bound []Pod
	for _, uid := range slices.Sorted(maps.Keys(s.bound[node])) {
		bound = append(bound, s.pods[uid])
	}
	return bound
}

// RequestsOf the pods of a gang that are bound (also those being deleted) or assigned, by node.
func (s *Store) RequestsOf(gang identity.Key) map[string][]Resources {
	s.mu.RLock()
	defer s.mu.RUnlock()
	held := map[string][]Resources{}
	for uid := range s.gangs[gang] {
		node := s.pods[uid].Node
		if assignment := s.assignments[uid]; node == "" && assignment != nil {
			node = assignment.Node
		}
		if node != "" {
			held[node] = append(held[node], s.pods[uid].Requests)
		}
	}
	return held
}

// UnboundCoreSeconds is for how many core-seconds capacity was reserved so far for pods that were not bound: held by a plan, until it
// was permitted or dropped, and then while the binding was in progress.
func (s *Store) UnboundCoreSeconds(now time.Time) (held, binding float64) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	held, binding = s.held, s.binding
	for _, assignment := range s.assignments {
		if assignment.Phase == Permitted {
			binding += assignment.coreSeconds(now)
		} else {
			held += assignment.coreSeconds(now)
		}
	}
	return held, binding
}

func (a *Assignment) coreSeconds(now time.Time) float64 {
	return float64(a.Pod.Requests["cpu"]) / 1000 * now.Sub(a.Since).Seconds()
}

// account adds the core-seconds of an assignment since the last call; the caller holds mu.
func (s *Store) account(assignment *Assignment, now time.Time) {
	if assignment.Phase == Permitted {
		s.binding += assignment.coreSeconds(now)
	} else {
		s.held += assignment.coreSeconds(now)
	}
	assignment.Since = now
}

// InFlight is how many pods were assigned or permitted within a time and are not bound yet, without those that wait for victims.
func (s *Store) InFlight(now time.Time, within time.Duration) int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	count := 0
	for _, assignment := range s.assignments {
		if !assignment.AwaitsVictims && now.Sub(assignment.Since) < within {
			count++
		}
	}
	return count
}

// StalePlans lists gangs with an assignment that is older than the limit and not permitted. One that waits for victims is not stale.
func (s *Store) StalePlans(now time.Time, limit time.Duration) []identity.Key {
	s.mu.RLock()
	defer s.mu.RUnlock()
	stale := map[identity.Key]bool{}
	for _, assignment := range s.assignments {
		if assignment.Phase != Permitted && !assignment.AwaitsVictims && now.Sub(assignment.Since) > limit {
			stale[assignment.Pod.Gang] = true
		}
	}
	return sorted(stale)
}

// sorted keys.
func sorted[V any](gangs map[identity.Key]V) []identity.Key {
	return slices.SortedFunc(maps.Keys(gangs), identity.Key.Compare)
}

// unassign a pod; the caller holds mu.
func (s *Store) unassign(uid string, now time.Time) {
	assignment := s.assignments[uid]
	if assignment == nil {
		return
	}
	s.account(assignment, now)
	if assignment.Phase == Planned {
		s.unplan(assignment)
	}
	delete(s.assignments, uid)
	s.removeMember(assignment.Node, assignment.Pod.Gang)
}

// unplan ends the reservation for an assignment; the caller holds mu.
func (s *Store) unplan(assignment *Assignment) {
	if delete(s.planned[assignment.Node], assignment.Pod.UID); len(s.planned[assignment.Node]) == 0 {
		delete(s.planned, assignment.Node)
	}
	s.plannedCount.Add(-1)
}

// bind notes the node of a pod that has one; the caller holds mu.
func (s *Store) bind(pod Pod) {
	if pod.Node == "" {
		return
	}
	s.addMember(pod.Node, pod.Gang)
	if s.bound[pod.Node] == nil {
		s.bound[pod.Node] = map[string]bool{}
	}
	s.bound[pod.Node][pod.UID] = true
}

// unbind undoes bind; the caller holds mu.
func (s *Store) unbind(pod Pod) {
	s.removeMember(pod.Node, pod.Gang)
	if delete(s.bound[pod.Node], pod.UID); len(s.bound[pod.Node]) == 0 {
		delete(s.bound, pod.Node)
	}
}

func (s *Store) addMember(node string, gang identity.Key)    { s.count(node, gang, 1) }
func (s *Store) removeMember(node string, gang identity.Key) { s.count(node, gang, -1) }

// count replaces the inner map, since readers keep it; the caller holds mu.
func (s *Store) count(node string, gang identity.Key, by int) {
	if node == "" {
		return
	}
	members := maps.Clone(s.members[node])
	if members == nil {
		members = map[identity.Key]int{}
	}
	if members[gang] += by; members[gang] <= 0 {
		delete(members, gang)
	}
	if s.members[node] = members; len(members) == 0 {
		delete(s.members, node)
	}
}

// Pod of a UID, if it is known.
func (s *Store) Pod(uid string) (Pod, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	pod, known := s.pods[uid]
	return pod, known
}

// Has reports whether a pod is known.
func (s *Store) Has(uid string) bool {
	_, known := s.Pod(uid)
	return known
}
