//go:build integration

package integration

import (
	"context"
	"fmt"
	"os"
	"testing"

	"coach.dev/scheduler-plugins/test/plane"
)

const deploy = "../../../deploy/scheduler"

var shared *plane.Plane

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	folder, err := os.MkdirTemp("", "coach-integration-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(folder)
	var stop func()
	if shared, stop, err = plane.Start(ctx, folder, deploy); err != nil {
		fmt.Fprintln(os.Stderr, "no control plane:", err)
		return 1
	}
	defer stop()
	return m.Run()
}
