package queuesort

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"coach.dev/scheduler-plugins/pkg/identity"
	"coach.dev/scheduler-plugins/pkg/order"
)

func TestLessAllocatesNothing(t *testing.T) {
	q := New()
	info := func(name string) *framework.QueuedPodInfo {
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Labels: map[string]string{identity.JobLabel: "a"}}}
		q.SetKey(pod, order.Key{Gang: "default/a", Name: name})
		return &framework.QueuedPodInfo{PodInfo: &framework.PodInfo{Pod: pod}, Timestamp: time.Now()}
	}
	a, b := info("a"), info("b")
	if !q.Less(a, b) || q.Less(b, a) {
		t.Error("not by name")
	}
	if n := testing.AllocsPerRun(1000, func() { q.Less(a, b) }); n != 0 {
		t.Errorf("Less allocates %v times", n)
	}
}

func TestPodsOfNoGangCompareAsUnderTheStockQueue(t *testing.T) {
	q := New()
	at := func(seconds int64, value int32) *framework.QueuedPodInfo {
		return &framework.QueuedPodInfo{PodInfo: &framework.PodInfo{Pod: &v1.Pod{Spec: v1.PodSpec{Priority: &value}}}, Timestamp: time.Unix(seconds, 0)}
	}
	if !q.Less(at(1, 0), at(2, 0)) || q.Less(at(1, 0), at(1, 0)) || !q.Less(at(9, 1), at(1, 0)) {
		t.Error("priority, then the time in the queue, and equal pods in no order")
	}
}

func TestAKeyOutlivesItsPodByOneRound(t *testing.T) {
	q := New()
	q.SetKey(&v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "a"}}, order.Key{})
	for round, keys := range []int{1, 0} {
		if q.Prune(func(string) bool { return false }); len(q.keys) != keys {
			t.Errorf("%d keys after round %d, not %d", len(q.keys), round, keys)
		}
	}
}
