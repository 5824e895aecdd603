// Command coach-scheduler is kube-scheduler with Coach's plugins: CoachQueue (all profiles), CoachGate and CoachGang (profile
// coach), CoachThesis (profile coach-thesis) and CoachRoom (any other profile). All flags are kube-scheduler's own.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	"k8s.io/kubernetes/cmd/kube-scheduler/app"
	"k8s.io/utils/clock"

	"coach.dev/scheduler-plugins/pkg/plugin"
)

func main() {
	state := plugin.NewState(clock.RealClock{})
	os.Exit(cli.Run(app.NewSchedulerCommand(
		app.WithPlugin(plugin.QueueName, state.NewQueue),
		app.WithPlugin(plugin.GateName, state.NewGate),
		app.WithPlugin(plugin.GangName, state.NewGang),
		app.WithPlugin(plugin.ThesisName, state.NewThesis),
		app.WithPlugin(plugin.RoomName, state.NewRoom),
	)))
}
