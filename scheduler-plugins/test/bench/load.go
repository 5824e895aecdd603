package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"coach.dev/scheduler-plugins/pkg/api"
	"coach.dev/scheduler-plugins/pkg/reason"
	"coach.dev/scheduler-plugins/test/plane"
)

const (
	namespace = "default"
	creators  = 8
	patience  = 4 * time.Minute
)

var (
	podGroups   = schema.GroupVersionResource{Group: "scheduling.x-k8s.io", Version: "v1alpha1", Resource: "podgroups"}
	immediately = metav1.DeleteOptions{GracePeriodSeconds: new(int64)}
)

// cluster is the API server with its nodes, and what a watch has seen of its pods.
type cluster struct {
	*plane.Plane
	client kubernetes.Interface // speaks protobuf

	mu      sync.Mutex
	bound   map[string]time.Time // pod to when the watch told that it is bound
	words   []word               // what pods were told of why they are unschedulable, in the order of the watch
	told    map[string]string    // pod to its last word
	present int                  // pods that exist
}

// word is a new condition of a pod.
type word struct {
	at      time.Time
	pod     string
	message string
}

func newCluster(ctx context.Context, p *plane.Plane) (*cluster, error) {
	config := p.Config("admin")
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	c := &cluster{Plane: p, client: client, bound: map[string]time.Time{}, told: map[string]string{}}
	factory := informers.NewSharedInformerFactory(client, 0)
	informer := factory.Core().V1().Pods().Informer()
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(object any) {
			c.mu.Lock()
			c.present++
			c.mu.Unlock()
			c.see(object.(*v1.Pod))
		},
		UpdateFunc: func(_, object any) { c.see(object.(*v1.Pod)) },
		DeleteFunc: func(any) {
			c.mu.Lock()
			c.present--
			c.mu.Unlock()
		},
	}); err != nil {
		return nil, err
	}
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return nil, errors.New("the watch on pods does not start")
	}
	return c, nil
}

func (c *cluster) see(pod *v1.Pod) {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, known := c.bound[pod.Name]; !known && pod.Spec.NodeName != "" {
		c.bound[pod.Name] = now
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == v1.PodScheduled && condition.Status == v1.ConditionFalse && condition.Message != c.told[pod.Name] {
			c.told[pod.Name] = condition.Message
			c.words = append(c.words, word{now, pod.Name, condition.Message})
		}
	}
}

// forget what was seen; the pods are gone.
func (c *cluster) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bound, c.told, c.words = map[string]time.Time{}, map[string]string{}, nil
}

func (c *cluster) seen() (bound, present int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.bound), c.present
}

// verdictAfter gives the first word after an instant that could be on a gang that is complete: of coach, the one on the whole gang; of
// coscheduling, none that still speaks of siblings to come.
func (c *cluster) verdictAfter(of contender, after time.Time) (word, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, w := range c.words {
		stale := of.name == "coach" && !strings.Contains(w.message, string(reason.NeverFits)) ||
			of.name == "coscheduling" && strings.Contains(w.message, "cannot find enough sibling pods")
		if w.at.After(after) && !stale {
			return w, true
		}
	}
	return word{}, false
}

func (c *cluster) until(what string, condition func() bool) error {
	for deadline := time.Now().Add(patience); !condition(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			bound, present := c.seen()
			return fmt.Errorf("never: %s (%d pods, %d bound)", what, present, bound)
		}
	}
	return nil
}

// nodes of eight cores; the first fifty are labelled few=yes.
func (c *cluster) nodes(ctx context.Context, count int) error {
	capacity := v1.ResourceList{v1.ResourceCPU: resource.MustParse("8"), v1.ResourceMemory: resource.MustParse("64Gi"), v1.ResourcePods: resource.MustParse("110")}
	return each(count, func(i int) error {
		node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%04d", i)}, Status: v1.NodeStatus{Capacity: capacity, Allocatable: capacity}}
		if i < fewNodes {
			node.Labels = map[string]string{"few": "yes"}
		}
		_, err := c.client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
		return err
	})
}

const fewNodes = 50

// each calls f with 0 to count-1 from some goroutines at once.
func each(count int, f func(int) error) error {
	var group sync.WaitGroup
	errs := make([]error, creators)
	for w := range creators {
		group.Go(func() {
			for i := w; i < count && errs[w] == nil; i += creators {
				errs[w] = f(i)
			}
		})
	}
	group.Wait()
	return errors.Join(errs...)
}

// gang to create: its object, where the contender has one, and its pods.
type gang struct {
	name     string
	members  int
	cores    func(member int) string
	selector map[string]string
}

func oneCore(int) string { return "1" }

// create a gang, and return when the last member was.
func (c *cluster) create(ctx context.Context, of contender, g gang) (time.Time, error) {
	switch of.name {
	case "coach":
		object := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "coach.dev/v1alpha1", "kind": "Gang", "metadata": map[string]any{"name": g.name},
			"spec": map[string]any{"roles": []any{map[string]any{"name": "scheduler", "required": int64(1)}, map[string]any{"name": "server", "required": int64(1)},
				map[string]any{"name": "worker", "required": int64(g.members - 2)}}}}}
		if _, err := c.Dynamic.Resource(api.Resource).Namespace(namespace).Create(ctx, object, metav1.CreateOptions{}); err != nil {
			return time.Time{}, err
		}
	case "coscheduling":
		object := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "scheduling.x-k8s.io/v1alpha1", "kind": "PodGroup",
			"metadata": map[string]any{"name": g.name}, "spec": map[string]any{"minMember": int64(g.members)}}}
		if _, err := c.Dynamic.Resource(podGroups).Namespace(namespace).Create(ctx, object, metav1.CreateOptions{}); err != nil {
			return time.Time{}, err
		}
	}
	for m := range g.members {
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%03d", g.name, m), Labels: of.labels(g.name, m)},
			Spec: v1.PodSpec{SchedulerName: of.profile, NodeSelector: g.selector, Containers: []v1.Container{{Name: "c", Image: "i",
				Resources: v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse(g.cores(m))}}}}}}
		if _, err := c.client.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
			return time.Time{}, err
		}
	}
	return time.Now(), nil
}

// clear all gangs, and wait until the watch has seen it.
func (c *cluster) clear(ctx context.Context) error {
	if err := c.client.CoreV1().Pods(namespace).DeleteCollection(ctx, immediately, metav1.ListOptions{}); err != nil {
		return err
	}
	for _, kind := range []schema.GroupVersionResource{api.Resource, podGroups} {
		if err := c.Dynamic.Resource(kind).Namespace(namespace).DeleteCollection(ctx, immediately, metav1.ListOptions{}); err != nil {
			return err
		}
	}
	if err := c.client.EventsV1().Events(namespace).DeleteCollection(ctx, immediately, metav1.ListOptions{}); err != nil {
		return err
	}
	if err := c.until("all pods are gone", func() bool { _, present := c.seen(); return present == 0 }); err != nil {
		return err
	}
	c.forget()
	return nil
}

// writes so far that a scheduler makes: bindings, conditions, events, and the status of its own objects. The load creates pods and
// gangs and deletes collections, which are left out.
func (c *cluster) writes(ctx context.Context) (float64, error) {
	text, err := c.Client.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return 0, err
	}
	return sum(string(text), "apiserver_request_total", isWrite), nil
}

func isWrite(labels string) bool {
	is := func(label, value string) bool { return strings.Contains(labels, label+`="`+value+`"`) }
	wrote := is("verb", "POST") || is("verb", "PUT") || is("verb", "PATCH") || is("verb", "DELETE")
	load := is("verb", "POST") && is("subresource", "") && (is("resource", "pods") || is("resource", "gangs") || is("resource", "podgroups"))
	counted := is("resource", "pods") || is("resource", "events") || is("resource", "gangs") || is("resource", "podgroups")
	return wrote && counted && !load
}

// sum of the samples of a metric in the text that Prometheus reads.
func sum(text, metric string, labels func(string) bool) float64 {
	total := 0.0
	for line := range strings.Lines(text) {
		rest, found := strings.CutPrefix(line, metric)
		if !found || (rest[0] != '{' && rest[0] != ' ') {
			continue
		}
		at := strings.LastIndexByte(rest, ' ')
		if value, err := strconv.ParseFloat(strings.TrimSpace(rest[at:]), 64); err == nil && labels(rest[:at]) {
			total += value
		}
	}
	return total
}

func body(client *http.Client, request *http.Request) (string, error) {
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", request.URL.Path, response.Status)
	}
	return string(text), err
}
