package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	"k8s.io/kubernetes/pkg/scheduler/util"

	"coach.dev/scheduler-plugins/pkg/identity"
	"coach.dev/scheduler-plugins/pkg/order"
	"coach.dev/scheduler-plugins/pkg/plugin/metrics"
	"coach.dev/scheduler-plugins/pkg/reason"
)

// setStatus of a gang: why it waits, or that it is being placed. A change becomes an event on the pod, and gangs that wait for this one
// are tried again when it stops claiming capacity. It returns whether the status changed.
func (s *State) setStatus(key identity.Key, at order.Key, status reason.Reason, pod *v1.Pod) bool {
	s.mu.Lock()
	r := s.record(key)
	before := r.status
	r.status, r.order = status, at
	switch {
	case !status.Token.ClaimsCapacity():
		r.bypassed = 0
	case !before.Token.ClaimsCapacity():
		r.pendingSince = s.clock.Now()
	}
	s.limiter.Done(key)
	if status.Token != reason.WaitingMembers && status.Token != reason.Draining {
		r.returning = nil // its pods are recreated
	}
	// A gang that starts without having waited needs no event in addition to Kubernetes's own on each pod.
	quiet := status.Token == reason.Placing && (r.reported.Token == "" || r.reported.Token == reason.Placing)
	changed := !status.Same(r.reported)
	if changed {
		r.reported = status
	}
	s.mu.Unlock()

	// Others are tried again when this gang begins or ends to wait for capacity; not when its status is only repeated, or two pending
	// gangs would requeue each other for ever.
	queued := func(token reason.Token) bool { return token.ClaimsCapacity() || token == reason.ShadowReserved }
	if before.Token.ClaimsCapacity() != status.Token.ClaimsCapacity() || queued(before.Token) != queued(status.Token) || status.Token == reason.Placing {
		s.requeue.Pending()
	}
	if changed {
		metrics.StatusChanges.WithLabelValues(string(status.Token)).Inc()
		kind := v1.EventTypeNormal
		if status.Token == reason.Misconfigured || status.Token == reason.NeverFits {
			kind = v1.EventTypeWarning
		}
		if recorder := s.handle.EventRecorder(); recorder != nil && pod != nil && !quiet {
			recorder.Eventf(pod, nil, kind, string(status.Token), "Scheduling", "gang %s: %s", key, status.Message())
		}
	}
	return changed
}

// clearPending notes that a gang no longer waits for capacity, if it did: all its required members have nodes.
func (s *State) clearPending(key identity.Key, pod *v1.Pod) {
	s.mu.RLock()
	r := s.records[key]
	waited := r != nil && r.refusals.why == "" && (r.status.Token.ClaimsCapacity() || r.status.Token == reason.ShadowReserved) && len(r.victims) == 0
	s.mu.RUnlock()
	if waited {
		v := s.view(key)
		s.setStatus(key, s.order(&v), reason.Reason{Token: reason.Placing, Text: fmt.Sprintf("%d members planned, %d bound", len(v.assignments), len(v.bound))}, pod)
	}
}

// reportHeld writes into the condition of the first pod of a gang why it is held before the queue, since the scheduler itself writes no
// condition for such a pod: one event and one write for each change of the status.
func (s *State) reportHeld(ctx context.Context, v *view) {
	if len(v.pending) == 0 || s.profileOf(v.pending) != coachProfile || len(v.schedulable)+len(v.excess) == 0 {
		return
	}
	first := slices.Concat(v.schedulable, v.excess)[0]
	why := s.holdReason(v, first.UID)
	if why == nil || (why.Token != reason.WaitingMembers && why.Token != reason.Misconfigured && why.Token != reason.Draining) {
		return
	}
	if why.Token == reason.WaitingMembers && s.membersArriving(v) {
		return
	}
	pod, err := s.pods.Pods(first.Gang.Namespace).Get(first.Name)
	if err != nil || string(pod.UID) != first.UID {
		return
	}
	changed := s.setStatus(v.key, s.order(v), *why, pod)
	// For a pod that was tried a moment before it became misconfigured, the scheduler has overwritten this condition with its own.
	_, condition := podutil.GetPodCondition(&pod.Status, v1.PodScheduled)
	overwritten := why.Token == reason.Misconfigured && condition != nil && condition.Message != why.Message()
	if changed || overwritten {
		s.writeCondition(ctx, pod, why.Message())
	}
}

// writeCondition of a pod that never enters the queue.
func (s *State) writeCondition(ctx context.Context, pod *v1.Pod, message string) {
	status := pod.Status.DeepCopy()
	podutil.UpdatePodCondition(status, &v1.PodCondition{Type: v1.PodScheduled, Status: v1.ConditionFalse, Reason: v1.PodReasonUnschedulable,
		Message: message})
	if err := util.PatchPodStatus(ctx, s.handle.ClientSet(), pod.Name, pod.Namespace, &pod.Status, status); err != nil {
		klog.FromContext(ctx).Error(err, "Failed to write the condition of a pending pod", "pod", klog.KObj(pod))
	}
}

// reportInvalidLabels writes, once, that a pod is held because its labels name no member of a gang. It belongs to no gang.
func (s *State) reportInvalidLabels(ctx context.Context, pod *v1.Pod, invalid error) {
	why := reason.Reason{Token: reason.Misconfigured, Text: invalid.Error()}
	if _, condition := podutil.GetPodCondition(&pod.Status, v1.PodScheduled); condition != nil && condition.Message == why.Message() {
		return
	}
	metrics.StatusChanges.WithLabelValues(string(why.Token)).Inc()
	if recorder := s.handle.EventRecorder(); recorder != nil {
		recorder.Eventf(pod, nil, v1.EventTypeWarning, string(why.Token), "Scheduling", "%s", why.Message())
	}
	s.writeCondition(ctx, pod, why.Message())
}

// arrivalPeriod is for how long members may be created one after the other before the missing ones are reported: an event and a write
// for every gang that is just being created would have no use.
const arrivalPeriod = 500 * time.Millisecond

// membersArriving reports whether a member of a gang was created a moment ago; the gang is tried again when that is over.
func (s *State) membersArriving(v *view) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.record(v.key)
	if present := len(v.bound) + len(v.pending); present != r.present {
		r.present, r.presentChanged = present, s.clock.Now()
	}
	left := arrivalPeriod - s.clock.Since(r.presentChanged)
	if left > 0 {
		s.requeue.Gang(v.key, left)
	}
	return left > 0
}

// Report is one gang on /debug/gangs.
type Report struct {
	Gang     string            `json:"gang"`
	Reason   reason.Token      `json:"reason,omitempty"`
	Message  string            `json:"message,omitempty"`
	Waiting  float64           `json:"waitingSeconds,omitempty"`
	Bypasses int               `json:"bypasses,omitempty"`
	Bound    map[string]string `json:"bound,omitempty"`   // pod to node
	Planned  map[string]string `json:"planned,omitempty"` // pod to node
	Pending  []string          `json:"pending,omitempty"` // pods with neither
}

// Reports of all gangs that have a pod, by name.
func (s *State) Reports() []Report {
	var reports []Report
	for _, key := range s.gangPods.Gangs() {
		v := s.view(key)
		report := Report{Gang: key.String(), Bound: map[string]string{}, Planned: map[string]string{}}
		for _, pod := range v.bound {
			report.Bound[pod.Name] = pod.Node
		}
		for _, pod := range v.pending {
			if assignment, assigned := v.assignments[pod.UID]; assigned {
				report.Planned[pod.Name] = assignment.Node
			} else {
				report.Pending = append(report.Pending, pod.Name)
			}
		}
		s.mu.RLock()
		if r := s.records[key]; r != nil && len(report.Pending)+len(report.Planned) > 0 && r.status.Token != "" {
			report.Reason, report.Message, report.Bypasses = r.status.Token, r.status.Message(), r.bypassed
			if r.status.Token.ClaimsCapacity() {
				report.Waiting = s.clock.Since(r.pendingSince).Seconds()
			}
		}
		s.mu.RUnlock()
		reports = append(reports, report)
	}
	return reports
}

// ServeHTTP answers /debug/gangs; ?gang=namespace/job asks for one.
func (s *State) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	reports := s.Reports()
	if key := request.URL.Query().Get("gang"); key != "" {
		reports = slices.DeleteFunc(reports, func(r Report) bool { return r.Gang != key })
		if len(reports) == 0 {
			http.Error(w, fmt.Sprintf("no gang %s has a pod; /debug/gangs lists all", strings.ToValidUTF8(key, "?")), http.StatusNotFound)
			return
		}
	}
	w.Header().Set("Content-Type", "application/json")
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	_ = encoder.Encode(reports)
}

// serve /debug/gangs until the scheduler ends.
func (s *State) serve(ctx context.Context, address string) {
	logger := klog.FromContext(ctx)
	mux := http.NewServeMux()
	mux.Handle("GET /debug/gangs", s)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		logger.Error(err, "Failed to serve /debug/gangs; set debugAddress of CoachGang to a free address, or to the empty string")
		return
	}
	go func() {
		<-ctx.Done()
		_ = server.Close()
	}()
	logger.Info("Serving /debug/gangs", "address", listener.Addr())
	if err := server.Serve(listener); err != nil && !errors.Is(err, http.ErrServerClosed) {
		logger.Error(err, "Stopped serving /debug/gangs")
	}
}
