package plugin

import (
	"context"
	"fmt"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/kubernetes/cmd/kube-scheduler/app/options"
	"k8s.io/kubernetes/pkg/scheduler"
	schedulerconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/utils/clock"

	"coach.dev/scheduler-plugins/pkg/api"
	"coach.dev/scheduler-plugins/pkg/identity"
)

// patience for what must happen, and for what must not.
const (
	timeout = 20 * time.Second
	grace   = 300 * time.Millisecond
)

// cluster is the whole scheduler, with the configuration of deploy/scheduler/only-scheduler.yaml, on a fake API server: all of
// kube-scheduler is real, and what is faked is that objects are stored in memory and a binding just sets the node.
type cluster struct {
	t      *testing.T
	client *fake.Clientset
	state  *State
	events chan string
	uids   int
	since  int64                          // creation times of Gang objects, seconds
	bound  func(pod *v1.Pod, node string) // called before each binding, by one goroutine at a time
}

func newCluster(t *testing.T, args string, nodes ...*v1.Node) *cluster {
	t.Helper()
	logger, ctx := ktesting.NewTestContext(t)
	ctx = klog.NewContext(ctx, klog.Background())
	configuration, err := options.LoadConfigFromFile(logger, "../../../deploy/scheduler/only-scheduler.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for i := range configuration.Profiles {
		for j := range configuration.Profiles[i].PluginConfig {
			if c := &configuration.Profiles[i].PluginConfig[j]; c.Name == GangName {
				c.Args = &runtime.Unknown{Raw: []byte(args)}
			}
		}
	}
	c := &cluster{t: t, client: fake.NewClientset(), state: NewState(clock.RealClock{}), events: make(chan string, 10000)}
	c.client.PrependReactor("create", "pods", c.bind)
	for _, node := range nodes {
		c.create(node)
	}
	c.start(ctx, configuration)
	return c
}

func (c *cluster) start(ctx context.Context, configuration *schedulerconfig.KubeSchedulerConfiguration) {
	c.t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	factory := informers.NewSharedInformerFactory(c.client, 0)
	recorder := events.NewFakeRecorder(10000)
	c.events = recorder.Events
	s, err := scheduler.New(ctx, c.client, factory, nil, func(string) events.EventRecorder { return recorder },
		scheduler.WithProfiles(configuration.Profiles...),
		scheduler.WithPodInitialBackoffSeconds(1), scheduler.WithPodMaxBackoffSeconds(2),
		scheduler.WithFrameworkOutOfTreeRegistry(c.state.Registry()))
	if err != nil {
		c.t.Fatal(err)
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	if err := s.WaitForHandlersSync(ctx); err != nil {
		c.t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Run(ctx)
	}()
	c.t.Cleanup(func() { cancel(); <-done })
}

// bind is what the API server does with a binding.
func (c *cluster) bind(action clienttesting.Action) (bool, runtime.Object, error) {
	create, ok := action.(clienttesting.CreateAction)
	if !ok || action.GetSubresource() != "binding" {
		return false, nil, nil
	}
	binding := create.GetObject().(*v1.Binding)
	object, err := c.client.Tracker().Get(v1.SchemeGroupVersion.WithResource("pods"), binding.Namespace, binding.Name)
	if err != nil {
		return true, nil, err
	}
	pod := object.(*v1.Pod).DeepCopy()
	if c.bound != nil {
		c.bound(pod, binding.Target.Name)
	}
	if _, err := c.client.Tracker().Get(v1.SchemeGroupVersion.WithResource("nodes"), "", binding.Target.Name); err != nil {
		return true, nil, err
	}
	pod.Spec.NodeName = binding.Target.Name
	return true, binding, c.client.Tracker().Update(v1.SchemeGroupVersion.WithResource("pods"), pod, pod.Namespace)
}

func (c *cluster) create(object runtime.Object) {
	c.t.Helper()
	if err := c.client.Tracker().Add(object); err != nil {
		c.t.Fatal(err)
	}
}

// node with so many cores.
func node(name, cores string) *v1.Node {
	capacity := v1.ResourceList{v1.ResourceCPU: resource.MustParse(cores), v1.ResourceMemory: resource.MustParse("64Gi"), v1.ResourcePods: resource.MustParse("110")}
	return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: v1.NodeStatus{Capacity: capacity, Allocatable: capacity}}
}

// gang makes the Gang object of a job: so many required members of each role, and so many desired workers (at least the required).
func (c *cluster) gang(job string, schedulers, servers, workers, desired int, change ...func(*api.Gang)) {
	c.since++
	object := &api.Gang{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: job, CreationTimestamp: metav1.Unix(c.since, 0)}}
	object.Spec.Roles = []api.Role{{Name: identity.Scheduler, Required: schedulers, Desired: schedulers},
		{Name: identity.Server, Required: servers, Desired: servers}, {Name: identity.Worker, Required: workers, Desired: desired}}
	for _, f := range change {
		f(object)
	}
	c.state.setGang(object)
}

// pod of a job; scheduler and server ask for next to nothing.
func (c *cluster) pod(job string, role identity.Role, index int, cores string, change ...func(*v1.Pod)) {
	c.t.Helper()
	c.uids++
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("%s-%s-%d", job, role, index), UID: types.UID(fmt.Sprintf("uid-%d", c.uids)),
			CreationTimestamp: metav1.Now(),
			Labels:            map[string]string{identity.JobLabel: job, identity.RoleLabel: string(role), identity.IndexLabel: fmt.Sprint(index)}},
		Spec: v1.PodSpec{SchedulerName: "coach", Containers: []v1.Container{{Name: "c", Image: "i", Resources: v1.ResourceRequirements{
			Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse(cores)}}}}},
		Status: v1.PodStatus{Phase: v1.PodPending},
	}
	for _, f := range change {
		f(pod)
	}
	c.create(pod)
}

// job makes the pods of a gang: one scheduler and one server of 10m, and workers.
func (c *cluster) job(job string, workers int, cores string, change ...func(*v1.Pod)) {
	c.t.Helper()
	c.pod(job, identity.Scheduler, 0, "10m", change...)
	c.pod(job, identity.Server, 0, "10m", change...)
	for i := range workers {
		c.pod(job, identity.Worker, i, cores, change...)
	}
}

// pod of no gang is a pod that belongs to no job.
func (c *cluster) otherPod(name, cores string, change ...func(*v1.Pod)) {
	c.t.Helper()
	c.pod("", identity.Worker, 0, cores, append([]func(*v1.Pod){func(p *v1.Pod) {
		p.Name, p.Labels, p.Spec.SchedulerName = name, nil, "default-scheduler"
	}}, change...)...)
}

func priorityOf(value int32) func(*v1.Pod) { return func(p *v1.Pod) { p.Spec.Priority = &value } }

func withThesisProfile(p *v1.Pod) { p.Spec.SchedulerName = "coach-thesis" }

// placed gives how many pods of a job have a node.
func (c *cluster) placed(job string) int {
	n := 0
	for _, node := range c.nodesOf(job) {
		if node != "" {
			n++
		}
	}
	return n
}

// nodesOf gives the node of each pod of a job (or of the pod of that name).
func (c *cluster) nodesOf(job string) map[string]string {
	c.t.Helper()
	list, err := c.client.CoreV1().Pods("default").List(context.Background(), metav1.ListOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	nodes := map[string]string{}
	for _, pod := range list.Items {
		if pod.Labels[identity.JobLabel] == job || pod.Name == job {
			nodes[pod.Name] = pod.Spec.NodeName
		}
	}
	return nodes
}

func (c *cluster) eventually(what string, condition func() bool) {
	c.t.Helper()
	for deadline := time.Now().Add(timeout); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if condition() {
			return
		}
	}
	c.t.Fatalf("never: %s; gangs: %+v", what, c.state.Reports())
}

// never checks a while that something does not come about. It cannot fail a correct scheduler, however slow the machine.
func (c *cluster) never(what string, condition func() bool) {
	c.t.Helper()
	for deadline := time.Now().Add(grace); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if condition() {
			c.t.Fatalf("it came about: %s; gangs: %+v", what, c.state.Reports())
		}
	}
}

func (c *cluster) eventuallyPlaced(job string, pods int) {
	c.t.Helper()
	c.eventually(fmt.Sprintf("%d pods of %s placed", pods, job), func() bool { return c.placed(job) == pods })
}

// eventuallyWaits until the reason on a job is such a token.
func (c *cluster) eventuallyWaits(job, token string) string {
	c.t.Helper()
	var message string
	c.eventually(job+" waits: "+token, func() bool {
		for _, report := range c.state.Reports() {
			if report.Gang == "default/"+job && string(report.Reason) == token {
				message = report.Message
				return true
			}
		}
		return false
	})
	return message
}

func (c *cluster) remove(names ...string) {
	c.t.Helper()
	for _, name := range names {
		if err := c.client.CoreV1().Pods("default").Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
			c.t.Fatal(err)
		}
	}
}

func (c *cluster) removeJob(job string) {
	c.t.Helper()
	for name := range c.nodesOf(job) {
		c.remove(name)
	}
}
