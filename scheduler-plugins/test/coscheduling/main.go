// Command coscheduling is kube-scheduler with the coscheduling plugin of sigs.k8s.io/scheduler-plugins: what the benchmarks compare
// Coach's scheduler with. It is a module of its own, so that the scheduler does not depend on it, and built from the same
// Kubernetes. Under a configuration without the plugin it is the stock scheduler, the other one they compare with.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	"k8s.io/kubernetes/cmd/kube-scheduler/app"
	_ "sigs.k8s.io/scheduler-plugins/apis/config/scheme" // decodes CoschedulingArgs
	"sigs.k8s.io/scheduler-plugins/pkg/coscheduling"
)

func main() {
	os.Exit(cli.Run(app.NewSchedulerCommand(
		app.WithPlugin(coscheduling.Name, coscheduling.New),
		app.WithPlugin("Meter", newMeter),
	)))
}
