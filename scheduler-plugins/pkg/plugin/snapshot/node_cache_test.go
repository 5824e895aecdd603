package snapshot

import (
	"fmt"
	"math/rand"
	"reflect"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

// TestTheNodeCacheFollowsTheNodes changes nodes at random and compares the cache with a new one.
func TestTheNodeCacheFollowsTheNodes(t *testing.T) {
	random := rand.New(rand.NewSource(1))
	var nodes []fwk.NodeInfo
	pods := map[int][]*v1.Pod{}
	made := 0
	var cache NodeCache
	for step := range 2000 {
		n := 0
		if len(nodes) > 0 {
			n = random.Intn(len(nodes))
		}
		switch what := random.Intn(12); {
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
		default: // and goes
			pod := pods[n][0]
			pods[n] = pods[n][1:]
			if err := nodes[n].(*framework.NodeInfo).RemovePod(klog.Background(), pod); err != nil {
				t.Fatal(err)
			}
		}
		seen, fresh := cache.update(nodes), (&NodeCache{}).update(nodes)
		if !reflect.DeepEqual(seen.names, fresh.names) || !reflect.DeepEqual(seen.capacity, fresh.capacity) || !reflect.DeepEqual(seen.free, fresh.free) {
			t.Fatalf("step %d: the cache has %v of %v with %v free, there are %v of %v with %v", step, seen.names, seen.capacity, seen.free, fresh.names, fresh.capacity, fresh.free)
		}
	}
}
