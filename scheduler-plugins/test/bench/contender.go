package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"coach.dev/scheduler-plugins/pkg/identity"
	"coach.dev/scheduler-plugins/test/plane"
)

// contender is a scheduler that places gangs, each in its own way.
type contender struct {
	name     string
	program  string
	profile  string // the schedulerName of its pods
	unbound  string // the metric that tells core-seconds reserved for pods that were not bound
	describe string
	config   func(deploy string) (map[string]any, error)
}

var contenders = []contender{
	{name: "stock", program: "coscheduling", profile: "default-scheduler", unbound: "bench_reserved_unbound_core_seconds_total",
		describe: "kube-scheduler 1.35.4, pod by pod", config: func(string) (map[string]any, error) {
			return parse(`profiles: [{schedulerName: default-scheduler, plugins: {multiPoint: {enabled: [{name: Meter}]}}}]`)
		}},
	{name: "coscheduling", program: "coscheduling", profile: "default-scheduler", unbound: "bench_reserved_unbound_core_seconds_total",
		describe: "sigs.k8s.io/scheduler-plugins v0.35.4-devel, its example configuration", config: func(string) (map[string]any, error) {
			return parse(`profiles:
- schedulerName: default-scheduler
  plugins:
    multiPoint: {enabled: [{name: Coscheduling}, {name: Meter}]}
    queueSort: {enabled: [{name: Coscheduling}], disabled: [{name: "*"}]}
  pluginConfig: [{name: Coscheduling, args: {permitWaitingTimeSeconds: 10}}]`)
		}},
	{name: "coach", program: "coach-scheduler", profile: "coach", unbound: "coach_reserved_unbound_core_seconds_total",
		describe: "this scheduler, deploy/scheduler/only-scheduler.yaml", config: func(deploy string) (map[string]any, error) {
			text, err := os.ReadFile(filepath.Join(deploy, "only-scheduler.yaml"))
			if err != nil {
				return nil, err
			}
			return parse(string(text))
		}},
}

func parse(text string) (map[string]any, error) {
	var content map[string]any
	return content, yaml.Unmarshal([]byte(text), &content)
}

// QPS and Burst of every contender and of the load.
const (
	qps   = 5000
	burst = 10000
)

// gates of all contenders, and of deploy/chart: kube-scheduler else writes the node of a pod that waits for its
// siblings into the pod's status, for autoscalers, which is one more write for each member that is bound milliseconds later.
const gates = "NominatedNodeNameForExpectation=false"

// scheduler is a contender that runs.
type scheduler struct {
	contender
	command *exec.Cmd
	web     *http.Client
	url     string
}

// start a contender with the limits that all have in common.
func (c contender) start(p *plane.Plane, deploy string) (*scheduler, error) {
	folder, err := os.MkdirTemp(p.Folder, c.name+"-")
	if err != nil {
		return nil, err
	}
	kubeconfig := filepath.Join(folder, "kubeconfig")
	if err := p.Kubeconfig(kubeconfig, "admin"); err != nil {
		return nil, err
	}
	configuration, err := c.config(deploy)
	if err != nil {
		return nil, err
	}
	configuration["apiVersion"], configuration["kind"] = "kubescheduler.config.k8s.io/v1", "KubeSchedulerConfiguration"
	configuration["leaderElection"] = map[string]any{"leaderElect": false}
	configuration["clientConnection"] = map[string]any{"kubeconfig": kubeconfig, "qps": qps, "burst": burst}
	written, err := yaml.Marshal(configuration)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(folder, "config.yaml"), written, 0o600); err != nil {
		return nil, err
	}
	program, err := plane.Binary(c.program)
	if err != nil {
		return nil, err
	}
	ports, err := plane.FreePorts(1)
	if err != nil {
		return nil, err
	}
	s := &scheduler{contender: c, web: p.Web, url: fmt.Sprintf("https://127.0.0.1:%d", ports[0])}
	args := append(p.Serving(ports[0]), "--config", filepath.Join(folder, "config.yaml"),
		"--authorization-always-allow-paths", "/metrics,/readyz,/debug/*", "-v", "1", "--feature-gates", gates)
	if *profile != "" && c.name == "coach" {
		args = append(args, "--profiling")
	}
	if s.command, err = plane.Spawn(program, filepath.Join(folder, "log"), args...); err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		if _, err = s.get("/readyz"); err == nil {
			return s, nil
		}
		if time.Now().After(deadline) {
			s.stop()
			log, _ := os.ReadFile(filepath.Join(folder, "log"))
			return nil, fmt.Errorf("%s does not get ready: %w\n%s", c.name, err, log[max(0, len(log)-3000):])
		}
	}
}

func (s *scheduler) stop() {
	_ = s.command.Process.Kill()
	_ = s.command.Wait()
}

func (s *scheduler) get(path string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+path, nil)
	if err != nil {
		return "", err
	}
	return body(s.web, request)
}

// reserved gives the core-seconds so far of room taken by pods that were not bound: held until they might go, and while they were bound.
func (s *scheduler) reserved() (held, binding float64) {
	text, err := s.get("/metrics")
	if err != nil {
		return -1, -1
	}
	phase := func(name string) func(string) bool {
		return func(labels string) bool { return strings.Contains(labels, `"`+name+`"`) }
	}
	return sum(text, s.unbound, phase("held")), sum(text, s.unbound, phase("binding"))
}

// peak gives the largest resident memory of the process so far, in MiB, and the CPU seconds that it used.
func (s *scheduler) peak() (mebibytes, seconds float64) {
	folder := fmt.Sprintf("/proc/%d/", s.command.Process.Pid)
	status, _ := os.ReadFile(folder + "status")
	for line := range strings.Lines(string(status)) {
		if rest, found := strings.CutPrefix(line, "VmHWM:"); found {
			kibibytes, _ := strconv.ParseFloat(strings.Fields(rest)[0], 64)
			mebibytes = kibibytes / 1024
		}
	}
	stat, _ := os.ReadFile(folder + "stat")
	if _, rest, found := strings.Cut(string(stat), ") "); found {
		fields := strings.Fields(rest)
		user, _ := strconv.ParseFloat(fields[11], 64)
		system, _ := strconv.ParseFloat(fields[12], 64)
		seconds = (user + system) / 100 // ticks
	}
	return mebibytes, seconds
}

// labels of a member of a gang for a contender. Coach's gangs have a scheduler, a server and workers.
func (c contender) labels(gang string, member int) map[string]string {
	switch c.name {
	case "coach":
		role, index := identity.Worker, member-2
		if member < 2 {
			role, index = identity.Roles[member], 0
		}
		return map[string]string{identity.JobLabel: gang, identity.RoleLabel: string(role), identity.IndexLabel: strconv.Itoa(index)}
	case "coscheduling":
		return map[string]string{"scheduling.x-k8s.io/pod-group": gang}
	}
	return map[string]string{"gang": gang}
}
