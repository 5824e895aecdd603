package snapshot

import (
	"fmt"
	"math/rand"
	"reflect"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"coach.dev/scheduler-plugins/pkg/gangstate"
)

// TestTheNodeCacheFollowsTheNodes changes nodes at random and compares the cache with a new one. Half of the pods are members of a gang,
// which the store forgets some time after the scheduler does.
func TestTheNodeCacheFollowsTheNodes(t *testing.T) {
	random := rand.New(rand.NewSource(1))
	var nodes []fwk.NodeInfo
	pods := map[int][]*v1.Pod{}
	made := 0
	var cache NodeCache
	gangPods := gangstate.New()
	for step := range 2000 {
		n := 0
		if len(nodes) > 0 {
			n = random.Intn(len(nodes))
		}
		switch what := random.Intn(14); {
		case what == 0 || len(nodes) == 0: // a node comes, now and then with a device
			made++
			capacity := v1.ResourceList{v1.ResourceCPU: resource.MustParse("8"), v1.ResourceMemory: resource.MustParse("64Gi"), v1.ResourcePods: resource.MustParse("110")}
			object := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("n%d-%d", random.Intn(90), made)}, Status: v1.NodeStatus{Capacity: capacity, Allocatable: capacity}}
			if random.Intn(4) == 0 {
				object.Status.Allocatable["example.com/gpu"] = resource.MustParse("2")
			}
			info := framework.NewNodeInfo()
			info.SetNode(object)
			nodes = append(nodes, info)
		case what == 1 && len(nodes) > 2: // one goes, and the order changes
			nodes[n] = nodes[len(nodes)-1]
			nodes = nodes[:len(nodes)-1]
			pods = map[int][]*v1.Pod{}
		case what == 2: // one changes
			changed := nodes[n].Node().DeepCopy()
			changed.Status.Allocatable[v1.ResourceCPU] = resource.MustParse(fmt.Sprint(1 + random.Intn(20)))
			nodes[n].(*framework.NodeInfo).SetNode(changed)
		case what < 8 || len(pods[n]) == 0: // a pod comes
			made++
			pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("p", made), UID: types.UID(fmt.Sprint(made))}, Spec: v1.PodSpec{Containers: []v1.Container{{
				Resources: v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse(fmt.Sprintf("%dm", random.Intn(900)))}}}}}}
			info, err := framework.NewPodInfo(pod)
			if err != nil {
				t.Fatal(err)
			}
			nodes[n].(*framework.NodeInfo).AddPodInfo(info)
			pods[n] = append(pods[n], pod)
			if random.Intn(2) == 0 {
				gangPods.Update(gangstate.Pod{UID: string(pod.UID), Node: nodes[n].Node().Name, Requests: Requests(pod)}, time.Now())
			}
		case what > 11: // the store forgets those of a node that the scheduler has forgotten
			for _, pod := range gangPods.BoundTo(nodes[n].Node().Name) {
				if !counts(nodes[n], pod.UID) {
					gangPods.Delete(pod.UID, time.Now())
				}
			}
		default: // and goes
			pod := pods[n][0]
			pods[n] = pods[n][1:]
			if err := nodes[n].(*framework.NodeInfo).RemovePod(klog.Background(), pod); err != nil {
				t.Fatal(err)
			}
		}
		seen, fresh := cache.update(nodes, gangPods), (&NodeCache{}).update(nodes, gangPods)
		for i, info := range seen.infos {
			left := info.GetAllocatable().GetMilliCPU()
			for _, pod := range info.GetPods() {
				left -= Requests(pod.GetPod())[cpu]
			}
			for _, pod := range gangPods.BoundTo(info.Node().Name) {
				if !counts(info, pod.UID) {
					left -= pod.Requests[cpu]
				}
			}
			if free := seen.free[i*len(seen.dimensions)]; free != left {
				t.Fatalf("step %d: %s has %d of cpu free, not %d", step, info.Node().Name, left, free)
			}
		}
		if !reflect.DeepEqual(seen.names, fresh.names) || !reflect.DeepEqual(seen.capacity, fresh.capacity) || !reflect.DeepEqual(seen.free, fresh.free) {
			t.Fatalf("step %d: the cache has %v of %v with %v free, there are %v of %v with %v", step, seen.names, seen.capacity, seen.free, fresh.names, fresh.capacity, fresh.free)
		}
	}
}

func TestTheRoomOfAMemberIsHeldUntilTheStoreForgetsIt(t *testing.T) {
	info := framework.NewNodeInfo()
	info.SetNode(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: v1.NodeStatus{Allocatable: v1.ResourceList{v1.ResourceCPU: resource.MustParse("4")}}})
	gangPods := gangstate.New()
	var cache NodeCache
	free := func() int64 { return cache.update([]fwk.NodeInfo{info}, gangPods).free[0] }
	gangPods.Update(gangstate.Pod{UID: "1", Node: "n1", Requests: gangstate.Resources{cpu: 1400}}, time.Now())
	if free() != 2600 {
		t.Errorf("bound, and not counted by the scheduler: %d free", free())
	}
	gangPods.Delete("1", time.Now())
	if free() != 4000 {
		t.Errorf("forgotten by both: %d free", free())
	}
}
