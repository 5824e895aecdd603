// Command coach-scheduler is kube-scheduler with Coach's plugins: CoachQueue (all profiles), CoachGate and CoachGang (profile
// coach), CoachThesis (profile coach-thesis) and CoachCapacityGuard (any other profile). All flags are kube-scheduler's own.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	"k8s.io/kubernetes/cmd/kube-scheduler/app"
	"k8s.io/utils/clock"

	"coach.dev/scheduler-plugins/pkg/plugin"
)

func main() {
	var options []app.Option
	for name, factory := range plugin.NewState(clock.RealClock{}).Registry() {
		options = append(options, app.WithPlugin(name, factory))
	}
	os.Exit(cli.Run(app.NewSchedulerCommand(options...)))
}
