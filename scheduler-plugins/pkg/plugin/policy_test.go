package plugin

import (
	"context"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/kubernetes/cmd/kube-scheduler/app/options"

	"coach.dev/scheduler-plugins/pkg/api"
	"coach.dev/scheduler-plugins/pkg/config"
	"coach.dev/scheduler-plugins/pkg/identity"
)

func lasts(seconds float64) func(*api.Gang) {
	return func(g *api.Gang) { g.Spec.PredictedSeconds = &seconds }
}

func endsIn(wait time.Duration) func(*api.Gang) {
	return func(g *api.Gang) { end := metav1.NewTime(time.Now().Add(wait)); g.Spec.PredictedEnd = &end }
}

func trial(g *api.Gang) { g.Spec.TrialAndError = true }

func TestUnderEasyAGangPassesThatEndsBeforeTheHeadCanStart(t *testing.T) {
	c := newCluster(t, `{"backfill":"easy"}`, node("n1", "4"))
	c.gang("running", 1, 1, 1, 1, endsIn(time.Hour))
	c.job("running", 1, "2")
	c.eventuallyPlaced("running", 3)
	c.gang("head", 1, 1, 1, 1)
	c.job("head", 1, "3")
	c.eventuallyWaits("head", "WaitingCapacity")
	c.gang("long", 1, 1, 1, 1, lasts(7200))
	c.job("long", 1, "1500m")
	if message := c.eventuallyWaits("long", "ShadowReserved"); !strings.Contains(message, "starts in about 3") {
		t.Errorf("no time in %s", message)
	}
	c.gang("short", 1, 1, 1, 1, lasts(60))
	c.job("short", 1, "1500m")
	c.eventuallyPlaced("short", 3)
	if n := c.placed("long") + c.placed("head"); n != 0 {
		t.Errorf("%d pods of the others", n)
	}
}

func TestUnderPoolAGangPassesOnNodesThatTheHeadCannotUse(t *testing.T) {
	c := newCluster(t, `{"backfill":"pool"}`, node("large", "8"), node("small", "2"))
	c.otherPod("web", "4", func(p *v1.Pod) { p.Spec.NodeSelector = map[string]string{} })
	c.eventuallyPlaced("web", 1)
	c.gang("head", 1, 1, 1, 1)
	c.job("head", 1, "6")
	c.eventuallyWaits("head", "WaitingCapacity")
	c.gang("one", 1, 1, 1, 1)
	c.job("one", 1, "1500m")
	c.eventuallyPlaced("one", 3)
	if node := c.nodesOf("one")["one-worker-0"]; node != "small" {
		t.Errorf("on %s", node)
	}
	c.gang("two", 1, 1, 1, 1)
	c.job("two", 1, "1500m")
	c.eventuallyWaits("two", "ShadowReserved")
}

func TestATrialPreemptsAWholeBestEffortGangAndKeepsItsCapacity(t *testing.T) {
	for _, policy := range []string{"fitgpp", "lrtp", "random"} {
		t.Run(policy, func(t *testing.T) {
			c := newCluster(t, `{"preemption":"`+policy+`"}`, node("n1", "4"))
			c.gang("be", 1, 1, 2, 2)
			c.job("be", 2, "1900m")
			c.eventuallyPlaced("be", 4)
			c.gang("other", 1, 1, 1, 1) // waits for the same capacity, and is older than the trial
			c.job("other", 1, "1")
			c.eventuallyWaits("other", "WaitingCapacity")
			c.gang("te", 1, 1, 1, 1, trial)
			c.job("te", 1, "3", priorityOf(10))
			c.eventuallyPlaced("te", 3)
			if n := len(c.nodesOf("be")); n != 0 {
				t.Errorf("%d pods of the victim are left", n)
			}
			c.never("the other gang in the freed capacity", func() bool { return c.placed("other") != 0 })
			c.job("be", 2, "1900m") // the functions make new pods, which wait at their old place
			c.eventuallyWaits("be", "WaitingCapacity")
			c.removeJob("te")
			c.eventuallyPlaced("be", 4)
			c.never("the younger one", func() bool { return c.placed("other") != 0 })
		})
	}
}

func TestATrialThatFitsAnywayPreemptsNoGang(t *testing.T) {
	c := newCluster(t, `{"preemption":"fitgpp"}`, node("n1", "4"), node("n2", "4"))
	c.gang("be", 1, 1, 1, 1)
	c.job("be", 1, "3")
	c.eventuallyPlaced("be", 3)
	c.gang("te", 1, 1, 1, 1, trial)
	c.job("te", 1, "3")
	c.eventuallyPlaced("te", 3)
	if n := c.placed("be"); n != 3 {
		t.Errorf("%d of 3", n)
	}
}

func TestABestEffortGangPreemptsNoGang(t *testing.T) {
	c := newCluster(t, `{"preemption":"fitgpp"}`, node("n1", "4"))
	c.gang("be", 1, 1, 1, 1)
	c.job("be", 1, "3")
	c.eventuallyPlaced("be", 3)
	c.gang("late", 1, 1, 1, 1)
	c.job("late", 1, "3", priorityOf(10))
	c.eventuallyWaits("late", "WaitingCapacity")
	c.never("a preemption", func() bool { return c.placed("be") != 3 })
}

func TestANodeThatIsLostBeforeTheBindingCostsOnlyAnotherPlan(t *testing.T) {
	c := newCluster(t, `{}`, node("n1", "3"), node("n2", "4"))
	c.gang("a", 1, 1, 2, 2)
	c.pod("a", identity.Scheduler, 0, "10m")
	c.pod("a", identity.Server, 0, "10m")
	c.pod("a", identity.Worker, 0, "1")
	if err := c.client.CoreV1().Nodes().Delete(context.Background(), "n1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.pod("a", identity.Worker, 1, "1") // planned on n1 or not, whichever the scheduler saw first
	c.eventually("all on n2", func() bool {
		for _, node := range c.nodesOf("a") {
			if node != "n2" {
				return false
			}
		}
		return true
	})
}

func TestANewNodeStartsAGangThatNeverFitted(t *testing.T) {
	c := newCluster(t, `{}`, node("n1", "2"))
	c.gang("a", 1, 1, 1, 1)
	c.job("a", 1, "3")
	c.eventuallyWaits("a", "NeverFits")
	c.create(node("n2", "4"))
	c.eventuallyPlaced("a", 3)
}

func TestOneEventForEachChangeOfTheStatus(t *testing.T) {
	c := newCluster(t, `{}`, node("n1", "4"))
	c.otherPod("web", "2")
	c.eventuallyPlaced("web", 1)
	c.gang("a", 1, 1, 1, 1)
	c.job("a", 1, "3")
	c.eventuallyWaits("a", "WaitingCapacity")
	for range 5 {
		c.state.requeue.Gang(identity.Key{Namespace: "default", Job: "a"}, 0)
		time.Sleep(20 * time.Millisecond)
	}
	c.remove("web")
	c.eventuallyPlaced("a", 3)
	reported := map[string]int{}
	for len(c.events) > 0 {
		event := <-c.events
		for _, token := range []string{"WaitingCapacity", "Placing"} {
			if strings.Contains(event, "gang default/a: "+token) {
				reported[token]++
			}
		}
	}
	if reported["WaitingCapacity"] != 1 || reported["Placing"] != 1 {
		t.Errorf("each is reported once, not %v", reported)
	}
}

func TestTheConfigurationsInDeployCanBeLoaded(t *testing.T) {
	logger, _ := ktesting.NewTestContext(t)
	for file, profiles := range map[string]int{"chart/files/second-scheduler.yaml": 2, "scheduler/only-scheduler.yaml": 3} {
		configuration, err := options.LoadConfigFromFile(logger, "../../../deploy/"+file)
		if err != nil {
			t.Fatal(err)
		}
		if len(configuration.Profiles) != profiles {
			t.Errorf("%s has %d profiles", file, len(configuration.Profiles))
		}
		for _, profile := range configuration.Profiles {
			for _, c := range profile.PluginConfig {
				if c.Name != GangName {
					continue
				}
				if args, err := config.Decode(c.Args); err != nil || args != config.Default() {
					t.Errorf("%s shows %+v, %v; the defaults are %+v", file, args, err, config.Default())
				}
			}
		}
	}
}

func TestMetricsCountWhatHappened(t *testing.T) {
	c := newCluster(t, `{}`, node("n1", "4"))
	before := counters(t)
	c.gang("a", 1, 1, 1, 1)
	c.job("a", 1, "1")
	c.eventuallyPlaced("a", 3)
	after := counters(t)
	if after["coach_gang_plans_total"] <= before["coach_gang_plans_total"] {
		t.Errorf("no plan counted: %v", after)
	}
	if _, there := after["coach_reserved_unbound_core_seconds_total"]; !there {
		t.Errorf("reserved capacity is not reported: %v", after)
	}
}

func counters(t *testing.T) map[string]float64 {
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			if metric.GetCounter() != nil {
				values[family.GetName()] += metric.GetCounter().GetValue()
			}
		}
	}
	return values
}

func TestDebugGangsReportsTheNodesOfAllPods(t *testing.T) {
	c := newCluster(t, `{}`, node("n1", "4"))
	c.gang("a", 1, 1, 1, 1)
	c.job("a", 1, "1")
	c.eventuallyPlaced("a", 3)
	c.gang("b", 1, 1, 1, 1)
	c.job("b", 1, "3900m")
	c.eventuallyWaits("b", "WaitingCapacity")
	answer := httptest.NewRecorder()
	c.state.ServeHTTP(answer, httptest.NewRequest("GET", "/debug/gangs?gang=default/b", nil))
	if text := answer.Body.String(); !strings.Contains(text, `"reason": "WaitingCapacity"`) || !strings.Contains(text, "b-worker-0") || strings.Contains(text, "default/a\"") {
		t.Error(text)
	}
	answer = httptest.NewRecorder()
	c.state.ServeHTTP(answer, httptest.NewRequest("GET", "/debug/gangs?gang=default/c", nil))
	if answer.Code != 404 {
		t.Errorf("%d for an unknown gang", answer.Code)
	}
}
