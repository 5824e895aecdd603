package plugin

import (
	"context"
	"fmt"
	"math/rand"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"coach.dev/scheduler-plugins/pkg/api"
	"coach.dev/scheduler-plugins/pkg/identity"
	"coach.dev/scheduler-plugins/pkg/reason"
)

// TestRandomHistories plays random gangs, pods of no gang and nodes on the whole scheduler: no node holds more than it has, no member is
// bound before all required ones have a place, no part of a gang that waits is left, and at the end all have run, although
// nothing is tried again in the time that they are given (resyncSeconds). COACH_HISTORIES says how many.
func TestRandomHistories(t *testing.T) {
	count := 6
	if text := os.Getenv("COACH_HISTORIES"); text != "" {
		var err error
		if count, err = strconv.Atoi(text); err != nil {
			t.Fatalf("COACH_HISTORIES is %q, not a number", text)
		}
	}
	for seed := range count {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { newHistory(t, int64(seed)).play() })
	}
}

type history struct {
	*cluster
	random    *rand.Rand
	jobs      []*played
	otherPods []string
	extra     []string // nodes that come and go
	failed    bool     // a binding failed since its node was gone: its siblings may be bound without it for a moment
}

type played struct {
	name                     string
	required, desired, milli int
	ran                      bool
	podPriority              int32
}

func newHistory(t *testing.T, seed int64) *history {
	random := rand.New(rand.NewSource(seed))
	backfill := []string{"strict", "pool", "easy", "any"}[random.Intn(4)]
	preemption := []string{"never", "fitgpp", "lrtp", "random"}[random.Intn(4)]
	var nodes []*v1.Node
	for i := range 2 + random.Intn(3) {
		nodes = append(nodes, node(fmt.Sprintf("n%d", i), strconv.Itoa(2+random.Intn(5))))
	}
	h := &history{random: random}
	h.cluster = newCluster(t, fmt.Sprintf(`{"backfill":%q,"preemption":%q,"returnSeconds":2,"resyncSeconds":300}`, backfill, preemption), nodes...)
	h.bound = h.check
	t.Logf("%s, %s, %d nodes", backfill, preemption, len(nodes))
	return h
}

// check the cluster at the moment of a binding, which comes right after.
func (h *history) check(pod *v1.Pod, target string) {
	node, err := h.client.Tracker().Get(v1.SchemeGroupVersion.WithResource("nodes"), "", target)
	if err != nil {
		h.failed = true
		return
	}
	list, err := h.client.Tracker().List(v1.SchemeGroupVersion.WithResource("pods"), v1.SchemeGroupVersion.WithKind("Pod"), "default")
	if err != nil {
		h.t.Error(err)
		return
	}
	sum := milli(pod)
	for _, other := range list.(*v1.PodList).Items {
		if other.Spec.NodeName == target {
			sum += milli(&other)
		}
	}
	if whole := node.(*v1.Node).Status.Allocatable.Cpu().MilliValue(); sum > whole {
		h.t.Errorf("%s would make it %d of %d thousandths of a core on %s", pod.Name, sum, whole, target)
	}
	member, ours, _ := identity.Of(pod.Namespace, pod.Labels)
	if object := h.state.object(member.Gang); !ours || h.failed || object == nil || object.Status.Draining != nil {
		return
	}
	if v := h.state.view(member.Gang); v.missing.Total() > 0 {
		h.t.Errorf("%s is bound while its gang has no node for %v", pod.Name, v.missing)
	}
}

func milli(pod *v1.Pod) int64 { return pod.Spec.Containers[0].Resources.Requests.Cpu().MilliValue() }

func (h *history) play() {
	for range 30 {
		h.act()
		h.tend()
		time.Sleep(time.Duration(h.random.Intn(20)) * time.Millisecond)
	}
	h.remove(h.otherPods...)
	h.otherPods = nil
	for slices.ContainsFunc(h.jobs, func(j *played) bool { return !j.ran }) {
		h.eventually("another gang runs", func() bool {
			h.tend()
			h.noPart()
			return h.end()
		})
	}
}

// act does one thing at random.
func (h *history) act() {
	switch h.random.Intn(8) {
	case 0, 1, 2:
		h.arrive()
	case 3:
		h.end()
	case 4:
		name := fmt.Sprintf("web-%d", h.uids)
		h.otherPod(name, strconv.Itoa(100+h.random.Intn(900))+"m")
		h.otherPods = append(h.otherPods, name)
	case 5:
		if len(h.otherPods) > 0 {
			h.cluster.remove(h.otherPods[0])
			h.otherPods = h.otherPods[1:]
		}
	case 6:
		name := fmt.Sprintf("x%d", h.uids)
		h.uids++
		h.create(node(name, "4"))
		h.extra = append(h.extra, name)
	case 7:
		h.lose()
	}
}

// arrive with a new gang that the lasting nodes could hold if they were empty.
func (h *history) arrive() {
	if len(h.jobs) == 10 {
		return
	}
	job := &played{name: fmt.Sprintf("j%d", len(h.jobs)), required: 1 + h.random.Intn(3), milli: 200 + h.random.Intn(1700), podPriority: int32(h.random.Intn(2))}
	job.desired = job.required + h.random.Intn(3)
	left := job.required
	list, _ := h.client.CoreV1().Nodes().List(context.Background(), metav1.ListOptions{})
	for _, node := range list.Items {
		if node.Name[0] == 'n' {
			left -= (int(node.Status.Allocatable.Cpu().MilliValue()) - 20) / job.milli
		}
	}
	if left > 0 {
		return
	}
	h.jobs = append(h.jobs, job)
	h.gang(job.name, 1, 1, job.required, job.desired, func(g *api.Gang) {
		g.Spec.TrialAndError = h.random.Intn(3) == 0
		if h.random.Intn(2) == 0 {
			length := float64(1 + h.random.Intn(100))
			g.Spec.PredictedSeconds = &length
		}
	})
	h.make(job)
}

// make the pods of a gang that are not there, in any order.
func (h *history) make(job *played) {
	there := h.nodesOf(job.name)
	for _, i := range h.random.Perm(job.desired + 2) {
		role, index, cores := identity.Worker, i-2, strconv.Itoa(job.milli)+"m"
		if i < 2 {
			role, index, cores = identity.Roles[i], 0, "10m"
		}
		if _, is := there[fmt.Sprintf("%s-%s-%d", job.name, role, index)]; !is {
			h.pod(job.name, role, index, cores, priorityOf(job.podPriority))
		}
	}
}

// tend the gangs as the functions' own controllers do: a preempted one gets its pods again. A pod that was bound at the
// moment when its node went is deleted, as the garbage collector of pods does.
func (h *history) tend() {
	list, _ := h.client.CoreV1().Pods("default").List(context.Background(), metav1.ListOptions{})
	for _, pod := range list.Items {
		if name := pod.Spec.NodeName; name != "" {
			if _, err := h.client.Tracker().Get(v1.SchemeGroupVersion.WithResource("nodes"), "", name); err != nil {
				_ = h.client.CoreV1().Pods("default").Delete(context.Background(), pod.Name, metav1.DeleteOptions{})
			}
		}
	}
	for _, job := range h.jobs {
		object := h.state.object(identity.Key{Namespace: "default", Job: job.name})
		if !job.ran && object != nil && object.Status.Draining == nil && h.random.Intn(2) == 0 {
			h.make(job)
		}
	}
}

// end a gang whose required members run, and report whether there was one.
func (h *history) end() bool {
	for _, i := range h.random.Perm(len(h.jobs)) {
		job := h.jobs[i]
		workers := 0
		nodes := h.nodesOf(job.name)
		for name, node := range nodes {
			if node != "" && name != job.name+"-scheduler-0" && name != job.name+"-server-0" {
				workers++
			}
		}
		if job.ran || workers < job.required || nodes[job.name+"-scheduler-0"] == "" || nodes[job.name+"-server-0"] == "" {
			continue
		}
		job.ran = true
		h.state.removeGang(identity.Key{Namespace: "default", Job: job.name})
		for name := range nodes {
			_ = h.client.CoreV1().Pods("default").Delete(context.Background(), name, metav1.DeleteOptions{}) // or it is preempted at this moment
		}
		return true
	}
	return false
}

// lose a node on which no pod is bound; a plan may count on it.
func (h *history) lose() {
	list, _ := h.client.CoreV1().Pods("default").List(context.Background(), metav1.ListOptions{})
	for i, name := range h.extra {
		if !slices.ContainsFunc(list.Items, func(p v1.Pod) bool { return p.Spec.NodeName == name }) {
			_ = h.client.CoreV1().Nodes().Delete(context.Background(), name, metav1.DeleteOptions{})
			h.extra = slices.Delete(h.extra, i, i+1)
			return
		}
	}
}

// noPart of a gang is bound while the gang waits for capacity. Seen twice: its last pod may just have gone.
func (h *history) noPart() {
	parts := func() (names []string) {
		for _, report := range h.state.Reports() {
			if (report.Reason == reason.WaitingCapacity || report.Reason == reason.ShadowReserved) && len(report.Bound) > 0 {
				names = append(names, report.Gang)
			}
		}
		return names
	}
	if before := parts(); len(before) > 0 && !h.failed {
		time.Sleep(100 * time.Millisecond)
		for _, name := range parts() {
			if slices.Contains(before, name) {
				h.t.Fatalf("part of %s is bound while it waits: %+v", name, h.state.Reports())
			}
		}
	}
}
