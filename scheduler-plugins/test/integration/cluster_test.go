//go:build integration

package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	admission "k8s.io/api/admissionregistration/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/yaml"

	"coach.dev/scheduler-plugins/pkg/api"
	"coach.dev/scheduler-plugins/pkg/identity"
	"coach.dev/scheduler-plugins/test/plane"
)

var gangs = api.Resource

const (
	patience = 60 * time.Second
	pause    = time.Second
)

var immediately = metav1.DeleteOptions{GracePeriodSeconds: new(int64)}

// cluster is the shared control plane with the nodes of one test and a scheduler of its own.
type cluster struct {
	t         *testing.T
	ctx       context.Context
	scheduler *exec.Cmd
	args      map[string]any
	debug     string
	secure    string
}

// newCluster starts the scheduler's binary with deploy/scheduler/only-scheduler.yaml, in which args replace arguments of CoachGang.
func newCluster(t *testing.T, args map[string]any, nodes map[string]string) *cluster {
	t.Helper()
	c := &cluster{t: t, ctx: context.Background(), args: args}
	for name, cores := range nodes {
		c.node(name, cores)
	}
	t.Cleanup(c.clear)
	c.kubelets()
	c.start()
	t.Cleanup(c.kill)
	return c
}

func (c *cluster) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) start() {
	c.t.Helper()
	folder := c.t.TempDir()
	ports, err := plane.FreePorts(2)
	c.must(err)
	c.debug, c.secure = fmt.Sprintf("127.0.0.1:%d", ports[0]), fmt.Sprintf("https://127.0.0.1:%d", ports[1])
	c.must(shared.Kubeconfig(filepath.Join(folder, "kubeconfig"), "scheduler"))

	text, err := os.ReadFile(filepath.Join(deploy, "only-scheduler.yaml"))
	c.must(err)
	var configuration map[string]any
	c.must(yaml.Unmarshal(text, &configuration))
	configuration["leaderElection"] = map[string]any{"leaderElect": false}
	configuration["clientConnection"] = map[string]any{"kubeconfig": filepath.Join(folder, "kubeconfig"), "qps": 1000, "burst": 2000}
	for _, profile := range configuration["profiles"].([]any) {
		configs, _ := profile.(map[string]any)["pluginConfig"].([]any)
		for _, config := range configs {
			args := config.(map[string]any)["args"].(map[string]any)
			args["debugAddress"] = c.debug
			for name, value := range c.args {
				args[name] = value
			}
		}
	}
	text, err = yaml.Marshal(configuration)
	c.must(err)
	c.must(os.WriteFile(filepath.Join(folder, "config.yaml"), text, 0o600))
	program, err := plane.Binary("coach-scheduler")
	c.must(err)
	log := filepath.Join(folder, "scheduler.log")
	c.scheduler, err = plane.Spawn(program, log, append(shared.Serving(ports[1]), "--config", filepath.Join(folder, "config.yaml"),
		"--authorization-always-allow-paths", "/metrics", "-v", "2")...)
	c.must(err)
	c.t.Cleanup(func() {
		if c.t.Failed() {
			text, _ := os.ReadFile(log)
			c.t.Logf("end of the scheduler's log:\n%s", text[max(0, len(text)-6000):])
		}
	})
}

// kubelets do the one thing that the scheduler waits for: they confirm that a pod which is to be deleted has stopped.
func (c *cluster) kubelets() {
	ctx, cancel := context.WithCancel(c.ctx)
	watching, err := shared.Client.CoreV1().Pods("default").Watch(ctx, metav1.ListOptions{})
	c.must(err)
	c.t.Cleanup(cancel)
	go func() {
		for event := range watching.ResultChan() {
			if pod, ok := event.Object.(*v1.Pod); ok && event.Type == watch.Modified && pod.DeletionTimestamp != nil && pod.Spec.NodeName != "" {
				this := immediately
				this.Preconditions = metav1.NewUIDPreconditions(string(pod.UID)) // a new one may have its name by now
				_ = shared.Client.CoreV1().Pods("default").Delete(ctx, pod.Name, this)
			}
		}
	}()
}

// status of a Gang object: how often it was preempted, and for whom it drains.
func (c *cluster) status(job string) (preemptions int64, drainsFor string) {
	c.t.Helper()
	object, err := shared.Dynamic.Resource(gangs).Namespace("default").Get(c.ctx, job, metav1.GetOptions{})
	c.must(err)
	preemptions, _, _ = unstructured.NestedInt64(object.Object, "status", "preemptions")
	drainsFor, _, _ = unstructured.NestedString(object.Object, "status", "draining", "by")
	return preemptions, drainsFor
}

// kill the scheduler, as a crash does.
func (c *cluster) kill() {
	if c.scheduler != nil {
		_ = c.scheduler.Process.Kill()
		_ = c.scheduler.Wait()
		c.scheduler = nil
	}
}

// clear what a test left in the API server.
func (c *cluster) clear() {
	background := context.Background()
	_ = shared.Client.CoreV1().Pods("default").DeleteCollection(background, immediately, metav1.ListOptions{})
	_ = shared.Dynamic.Resource(gangs).Namespace("default").DeleteCollection(background, immediately, metav1.ListOptions{})
	_ = shared.Client.CoreV1().Nodes().DeleteCollection(background, immediately, metav1.ListOptions{})
	c.eventually("nothing is left", func() bool { return len(c.pods("")) == 0 })
}

func (c *cluster) node(name, cores string) {
	c.t.Helper()
	capacity := v1.ResourceList{v1.ResourceCPU: resource.MustParse(cores), v1.ResourceMemory: resource.MustParse("64Gi"), v1.ResourcePods: resource.MustParse("110")}
	_, err := shared.Client.CoreV1().Nodes().Create(c.ctx, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name},
		Status: v1.NodeStatus{Capacity: capacity, Allocatable: capacity}}, metav1.CreateOptions{})
	c.must(err)
}

// gang makes or changes the Gang object of a job.
func (c *cluster) gang(job string, workers, desired int, change ...func(spec map[string]any)) {
	c.t.Helper()
	spec := map[string]any{"roles": []any{
		map[string]any{"name": "scheduler", "required": int64(1)}, map[string]any{"name": "server", "required": int64(1)},
		map[string]any{"name": "worker", "required": int64(workers), "desired": int64(desired)}}}
	for _, f := range change {
		f(spec)
	}
	object := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "coach.dev/v1alpha1", "kind": "Gang",
		"metadata": map[string]any{"name": job, "namespace": "default"}, "spec": spec}}
	_, err := shared.Dynamic.Resource(gangs).Namespace("default").Create(c.ctx, object, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		patch, failed := json.Marshal(map[string]any{"spec": spec})
		c.must(failed)
		_, err = shared.Dynamic.Resource(gangs).Namespace("default").Patch(c.ctx, job, types.MergePatchType, patch, metav1.PatchOptions{})
	}
	c.must(err)
}

func (c *cluster) pod(job string, role identity.Role, index int, cores string, change ...func(*v1.Pod)) {
	c.t.Helper()
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("%s-%s-%d", job, role, index),
			Labels: map[string]string{identity.JobLabel: job, identity.RoleLabel: string(role), identity.IndexLabel: fmt.Sprint(index)}},
		Spec: v1.PodSpec{SchedulerName: "coach", Containers: []v1.Container{{Name: "c", Image: "i",
			Resources: v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse(cores)}}}}},
	}
	for _, f := range change {
		f(pod)
	}
	_, err := shared.Client.CoreV1().Pods("default").Create(c.ctx, pod, metav1.CreateOptions{})
	c.must(err)
}

// job makes a scheduler and a server of 10m and some workers.
func (c *cluster) job(job string, workers int, cores string, change ...func(*v1.Pod)) {
	c.t.Helper()
	c.pod(job, identity.Scheduler, 0, "10m", change...)
	c.pod(job, identity.Server, 0, "10m", change...)
	for i := range workers {
		c.pod(job, identity.Worker, i, cores, change...)
	}
}

func (c *cluster) otherPod(name, cores string) {
	c.t.Helper()
	c.pod("", identity.Worker, 0, cores, func(p *v1.Pod) {
		p.Name, p.Labels, p.Spec.SchedulerName = name, nil, "default-scheduler"
	})
}

// pods of a job (or the pod of that name; all for none) and their nodes.
func (c *cluster) pods(job string) map[string]string {
	c.t.Helper()
	list, err := shared.Client.CoreV1().Pods("default").List(context.Background(), metav1.ListOptions{})
	c.must(err)
	nodes := map[string]string{}
	for _, pod := range list.Items {
		if job == "" || pod.Labels[identity.JobLabel] == job || pod.Name == job {
			nodes[pod.Name] = pod.Spec.NodeName
		}
	}
	return nodes
}

func (c *cluster) placed(job string) int {
	n := 0
	for _, node := range c.pods(job) {
		if node != "" {
			n++
		}
	}
	return n
}

func (c *cluster) remove(job string) {
	c.t.Helper()
	for name := range c.pods(job) {
		if err := shared.Client.CoreV1().Pods("default").Delete(c.ctx, name, immediately); err != nil && !apierrors.IsNotFound(err) {
			c.t.Fatal(err)
		}
	}
}

func (c *cluster) eventually(what string, condition func() bool) {
	c.t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if condition() {
			return
		}
	}
	c.t.Fatalf("never: %s; pods %v; gangs %s", what, c.pods(""), c.reports())
}

func (c *cluster) never(what string, condition func() bool) {
	c.t.Helper()
	for deadline := time.Now().Add(pause); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if condition() {
			c.t.Fatalf("it came about: %s; pods %v; gangs %s", what, c.pods(""), c.reports())
		}
	}
}

func (c *cluster) eventuallyPlaced(job string, pods int) {
	c.t.Helper()
	c.eventually(fmt.Sprintf("%d pods of %s placed", pods, job), func() bool { return c.placed(job) == pods })
}

func (c *cluster) reports() string {
	response, err := http.Get("http://" + c.debug + "/debug/gangs")
	if err != nil {
		return err.Error()
	}
	defer response.Body.Close()
	var reports []map[string]any
	if err := json.NewDecoder(response.Body).Decode(&reports); err != nil {
		return err.Error()
	}
	return fmt.Sprint(reports)
}

// metric reports whether the scheduler serves a metric whose line begins so.
func (c *cluster) metric(line string) bool {
	response, err := shared.Web.Get(c.secure + "/metrics")
	if err != nil {
		return false
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return err == nil && strings.Contains(string(text), "\n"+line+" ")
}

// refuseBindings to a node at the API server, from when this returns until the test ends.
func (c *cluster) refuseBindings(node string) {
	c.t.Helper()
	policies := shared.Client.AdmissionregistrationV1()
	fail := admission.Fail
	_, err := policies.ValidatingAdmissionPolicies().Create(c.ctx, &admission.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "refuse"},
		Spec: admission.ValidatingAdmissionPolicySpec{FailurePolicy: &fail,
			MatchConstraints: &admission.MatchResources{ResourceRules: []admission.NamedRuleWithOperations{{RuleWithOperations: admission.RuleWithOperations{
				Operations: []admission.OperationType{admission.Create},
				Rule:       admission.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods/binding"}}}}}},
			Validations: []admission.Validation{{Expression: fmt.Sprintf("object.target.name != %q", node)}}}}, metav1.CreateOptions{})
	c.must(err)
	c.t.Cleanup(func() {
		_ = policies.ValidatingAdmissionPolicies().Delete(context.Background(), "refuse", metav1.DeleteOptions{})
		_ = policies.ValidatingAdmissionPolicyBindings().Delete(context.Background(), "refuse", metav1.DeleteOptions{})
	})
	_, err = policies.ValidatingAdmissionPolicyBindings().Create(c.ctx, &admission.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: "refuse"},
		Spec: admission.ValidatingAdmissionPolicyBindingSpec{PolicyName: "refuse", ValidationActions: []admission.ValidationAction{admission.Deny}}}, metav1.CreateOptions{})
	c.must(err)
	c.eventually("bindings to "+node+" are refused", func() bool {
		binding := &v1.Binding{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "nobody"}, Target: v1.ObjectReference{Kind: "Node", Name: node}}
		err := shared.Client.CoreV1().Pods("default").Bind(c.ctx, binding, metav1.CreateOptions{})
		return apierrors.IsInvalid(err) || apierrors.IsForbidden(err) // and not: there is no such pod
	})
}

// eventuallyWaits until some pod of a job says so in its condition, and an event, the metric and /debug/gangs as well.
func (c *cluster) eventuallyWaits(job, token string) string {
	c.t.Helper()
	var message string
	c.eventually(job+" waits: "+token, func() bool {
		list, err := shared.Client.CoreV1().Pods("default").List(c.ctx, metav1.ListOptions{LabelSelector: identity.JobLabel + "=" + job})
		c.must(err)
		for _, pod := range list.Items {
			for _, condition := range pod.Status.Conditions {
				if condition.Type == v1.PodScheduled && strings.Contains(condition.Message, token+": ") {
					message = condition.Message
					return true
				}
			}
		}
		return false
	})
	c.eventually("an event of "+token, func() bool {
		list, err := shared.Client.EventsV1().Events("default").List(c.ctx, metav1.ListOptions{})
		c.must(err)
		for _, event := range list.Items {
			if event.Reason == token && strings.HasPrefix(event.Note, "gang default/"+job+": ") {
				return true
			}
		}
		return false
	})
	c.eventually("a count of "+token, func() bool { return c.metric(fmt.Sprintf("coach_gang_status_changes_total{reason=%q}", token)) })
	c.eventually(token+" on /debug/gangs", func() bool {
		return strings.Contains(c.reports(), fmt.Sprintf("gang:default/%s message:%s: ", job, token))
	})
	return message
}
