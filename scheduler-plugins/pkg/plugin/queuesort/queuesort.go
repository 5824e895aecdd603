// Package queuesort orders the scheduling queue.
package queuesort

import (
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/scheduling/corev1"
	fwk "k8s.io/kube-scheduler/framework"

	"coach.dev/scheduler-plugins/pkg/identity"
	"coach.dev/scheduler-plugins/pkg/order"
)

// Name of the plugin.
const Name = "CoachQueue"

// Plugin is the queue sort plugin of all profiles, which share a queue and so its order: priority, then the job's creation, then the
// name. The key of a gang's pod is made once, before the pod enters the queue, and never changed: a heap whose keys change loses its order.
type Plugin struct {
	mu      sync.RWMutex
	keys    map[types.UID]*order.Key
	deleted map[types.UID]bool // pods that were gone at the last Prune
}

var _ fwk.QueueSortPlugin = &Plugin{}

// New plugin without keys.
func New() *Plugin { return &Plugin{keys: map[types.UID]*order.Key{}} }

// Name of the plugin.
func (p *Plugin) Name() string { return Name }

// Less allocates nothing. Two pods that are not ours compare as under the stock PrioritySort: by priority, then by when they came into
// the queue; a gang's pods are ordered among them by the job's creation.
func (p *Plugin) Less(one, two fwk.QueuedPodInfo) bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	a, b := p.keyOf(one), p.keyOf(two)
	return order.Less(&a, &b)
}

// keyOf a queued pod; the caller holds mu. A gang's pod without a key belongs to a profile without gangs.
func (p *Plugin) keyOf(info fwk.QueuedPodInfo) order.Key {
	pod := info.GetPodInfo().GetPod()
	if _, ours := pod.Labels[identity.JobLabel]; ours {
		if key := p.keys[pod.UID]; key != nil {
			return *key
		}
	}
	return order.Key{Priority: corev1.PodPriority(pod), Since: info.GetTimestamp().UnixNano()}
}

// SetKey of a pod, unless it has one.
func (p *Plugin) SetKey(pod *v1.Pod, key order.Key) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.keys[pod.UID] == nil {
		p.keys[pod.UID] = &key
	}
}

// Prune the keys of pods that do not exist, in the second call that finds them gone: the queue may hold a pod longer than it exists.
func (p *Plugin) Prune(exists func(uid string) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	deleted := map[types.UID]bool{}
	for uid := range p.keys {
		switch {
		case exists(string(uid)):
		case p.deleted[uid]:
			delete(p.keys, uid)
		default:
			deleted[uid] = true
		}
	}
	p.deleted = deleted
}
