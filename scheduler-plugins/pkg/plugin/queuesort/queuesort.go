package plugin

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	fwk "k8s.io/kube-scheduler/framework"

	"coach.dev/scheduler-plugins/pkg/identity"
	"coach.dev/scheduler-plugins/pkg/order"
)

// QueueName is the queue sort plugin of both profiles: all profiles of one scheduler share a queue, and so its order.
const QueueName = "CoachQueue"

// Queue orders the scheduling queue: priority, then the job's creation, then the name.
type Queue struct{ state *State }

var _ fwk.QueueSortPlugin = &Queue{}

// NewQueue makes the factory of the plugin.
func (s *State) NewQueue(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) {
	return &Queue{state: s}, nil
}

// Name of the plugin.
func (q *Queue) Name() string { return QueueName }

// Less reads frozen keys and allocates nothing. Two pods that are not ours compare as under the stock PrioritySort: by priority,
// then by when they came into the queue; a job's pods stand among them by the job's creation.
func (q *Queue) Less(one, two fwk.QueuedPodInfo) bool {
	q.state.mu.RLock()
	defer q.state.mu.RUnlock()
	a, b := q.state.keyOf(one), q.state.keyOf(two)
	return order.Less(&a, &b)
}

// keyOf a queued pod; the caller holds mu. A pod of ours without a frozen key belongs to a profile that does not know gangs.
func (s *State) keyOf(info fwk.QueuedPodInfo) order.Key {
	pod := info.GetPodInfo().GetPod()
	if _, ours := pod.Labels[identity.JobLabel]; ours {
		if key := s.keys[pod.UID]; key != nil {
			return *key
		}
	}
	return order.Key{Priority: priority(pod), Since: info.GetTimestamp().UnixNano()}
}
