package plugin

import (
	"context"
	"encoding/json"
	"fmt"
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
	"coach.dev/scheduler-plugins/pkg/reason"
)

// settle the verdict on a gang. pod is told about a new one by an event; who waits for the gang is woken when it stops claiming
// room. It returns whether the verdict is news.
func (s *State) settle(key identity.Key, at order.Key, verdict reason.Reason, pod *v1.Pod) bool {
	s.mu.Lock()
	r := s.record(key)
	before := r.verdict
	r.verdict, r.order = verdict, at
	switch {
	case !verdict.Token.Claims():
		r.bypassed = 0
	case !before.Token.Claims():
		r.since = s.clock.Now()
	}
	s.tried(key)
	if verdict.Token != reason.WaitingMembers && verdict.Token != reason.Draining {
		r.absent = nil // its pods are there again
	}
	// Who starts without having waited needs no word beside Kubernetes's own on each pod.
	quiet := verdict.Token == reason.Placing && (r.told.Token == "" || r.told.Token == reason.Placing)
	news := !verdict.Same(r.told)
	if news {
		r.told = verdict
	}
	s.mu.Unlock()

	// Others are looked at when this gang takes its place in the queue or leaves it; not when it is merely told the same again, or
	// two that wait would wake each other for ever.
	queued := func(token reason.Token) bool { return token.Claims() || token == reason.ShadowReserved }
	if before.Token.Claims() != verdict.Token.Claims() || queued(before.Token) != queued(verdict.Token) || verdict.Token == reason.Placing {
		s.wake.others()
	}
	if news {
		metrics.verdicts.WithLabelValues(string(verdict.Token)).Inc()
		kind := v1.EventTypeNormal
		if verdict.Token == reason.Misconfigured || verdict.Token == reason.NeverFits {
			kind = v1.EventTypeWarning
		}
		if recorder := s.handle.EventRecorder(); recorder != nil && pod != nil && !quiet {
			recorder.Eventf(pod, nil, kind, string(verdict.Token), "Scheduling", "gang %s: %s", key, verdict.Message())
		}
	}
	return news
}

// settled notes that a gang waits for room no more, if it did: it has places for all needed members.
func (s *State) settled(key identity.Key, pod *v1.Pod) {
	s.mu.RLock()
	r := s.records[key]
	waited := r != nil && (r.verdict.Token.Claims() || r.verdict.Token == reason.ShadowReserved) && len(r.victims) == 0
	s.mu.RUnlock()
	if waited {
		v := s.view(key)
		s.settle(key, s.order(&v), reason.Reason{Token: reason.Placing, Text: fmt.Sprintf("%d members planned, %d bound", len(v.seats), len(v.bound))}, pod)
	}
}

// explainGate tells the first pod of a gang that is held before the queue why, since the scheduler itself writes no condition for
// such a pod. One event and one write for each change of the verdict.
func (s *State) explainGate(ctx context.Context, v *view) {
	if len(v.asking) == 0 || s.profileOf(v.asking) != coachProfile || len(v.offered)+len(v.surplus) == 0 {
		return
	}
	first := slices.Concat(v.offered, v.surplus)[0]
	why := s.gate(v, first.UID)
	if why == nil || (why.Token != reason.WaitingMembers && why.Token != reason.Misconfigured && why.Token != reason.Draining) {
		return
	}
	if why.Token == reason.WaitingMembers && s.stillArriving(v) {
		return
	}
	pod, err := s.pods.Pods(first.Gang.Namespace).Get(first.Name)
	if err != nil || string(pod.UID) != first.UID {
		return
	}
	news := s.settle(v.key, s.order(v), *why, pod)
	// A pod that was tried a moment before its mistake was seen has the scheduler's own word written over ours.
	_, condition := podutil.GetPodCondition(&pod.Status, v1.PodScheduled)
	overwritten := why.Token == reason.Misconfigured && condition != nil && condition.Message != why.Message()
	if news || overwritten {
		s.tell(ctx, pod, why.Message())
	}
}

// tell a pod that never comes into the queue why, in its condition.
func (s *State) tell(ctx context.Context, pod *v1.Pod, message string) {
	status := pod.Status.DeepCopy()
	podutil.UpdatePodCondition(status, &v1.PodCondition{Type: v1.PodScheduled, Status: v1.ConditionFalse, Reason: v1.PodReasonUnschedulable,
		Message: message})
	if err := util.PatchPodStatus(ctx, s.handle.ClientSet(), pod.Name, pod.Namespace, &pod.Status, status); err != nil {
		klog.FromContext(ctx).Error(err, "Could not write why a pod waits", "pod", klog.KObj(pod))
	}
}

// explainLabels tells a pod whose labels name no member of a gang that it is held, once. It counts for no gang.
func (s *State) explainLabels(ctx context.Context, pod *v1.Pod, mistake error) {
	why := reason.Reason{Token: reason.Misconfigured, Text: mistake.Error()}
	if _, condition := podutil.GetPodCondition(&pod.Status, v1.PodScheduled); condition != nil && condition.Message == why.Message() {
		return
	}
	metrics.verdicts.WithLabelValues(string(why.Token)).Inc()
	if recorder := s.handle.EventRecorder(); recorder != nil {
		recorder.Eventf(pod, nil, v1.EventTypeWarning, string(why.Token), "Scheduling", "%s", why.Message())
	}
	s.tell(ctx, pod, why.Message())
}

// arrival is for how long members may arrive one after the other before anybody is told that some are missing: an event and a write
// for every gang that is just being created would tell nobody anything.
const arrival = 500 * time.Millisecond

// stillArriving reports whether a gang has lacked members for a moment only, and looks again when that is over.
func (s *State) stillArriving(v *view) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.record(v.key)
	if present := len(v.bound) + len(v.asking); present != r.present {
		r.present, r.arrived = present, s.clock.Now()
	}
	left := arrival - s.clock.Since(r.arrived)
	if left > 0 {
		s.wake.gang(v.key, left)
	}
	return left > 0
}

// Report is one gang on /debug/gangs.
type Report struct {
	Gang    string            `json:"gang"`
	Reason  reason.Token      `json:"reason,omitempty"`
	Message string            `json:"message,omitempty"`
	Waiting float64           `json:"waitingSeconds,omitempty"`
	Passed  int               `json:"bypasses,omitempty"`
	Bound   map[string]string `json:"bound,omitempty"`   // pod to node
	Planned map[string]string `json:"planned,omitempty"` // pod to node
	Asking  []string          `json:"asking,omitempty"`  // pods without a node
}

// Reports of all gangs that have a pod, by name.
func (s *State) Reports() []Report {
	var reports []Report
	for _, key := range s.ledger.Gangs() {
		v := s.view(key)
		report := Report{Gang: key.String(), Bound: map[string]string{}, Planned: map[string]string{}}
		for _, pod := range v.bound {
			report.Bound[pod.Name] = pod.Node
		}
		for _, pod := range v.asking {
			if seat, seated := v.seats[pod.UID]; seated {
				report.Planned[pod.Name] = seat.Node
			} else {
				report.Asking = append(report.Asking, pod.Name)
			}
		}
		s.mu.RLock()
		if r := s.records[key]; r != nil && len(report.Asking)+len(report.Planned) > 0 && r.verdict.Token != "" {
			report.Reason, report.Message, report.Passed = r.verdict.Token, r.verdict.Message(), r.bypassed
			if r.verdict.Token.Claims() {
				report.Waiting = s.clock.Since(r.since).Seconds()
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
	if asked := request.URL.Query().Get("gang"); asked != "" {
		reports = slices.DeleteFunc(reports, func(r Report) bool { return r.Gang != asked })
		if len(reports) == 0 {
			http.Error(w, fmt.Sprintf("no gang %s has a pod; /debug/gangs lists all", strings.ToValidUTF8(asked, "?")), http.StatusNotFound)
			return
		}
	}
	w.Header().Set("Content-Type", "application/json")
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	_ = encoder.Encode(reports)
}
