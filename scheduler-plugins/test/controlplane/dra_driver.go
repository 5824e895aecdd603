package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	resource "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
)

// draDriver prepares claims of devices that do not exist, by the kubelet's own API. The ResourceSlices that name them are not its own.
type draDriver struct{ name string }

func runDRADriver(arguments []string) error {
	if len(arguments) != 3 {
		return fmt.Errorf("dra-driver DRIVER NODE KUBECONFIG, not %q", arguments)
	}
	config, err := clientcmd.BuildConfigFromFlags("", arguments[2])
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	data := kubeletplugin.KubeletPluginsDir + "/" + arguments[0]
	if err := os.MkdirAll(data, 0o750); err != nil {
		return err
	}
	helper, err := kubeletplugin.Start(ctx, draDriver{arguments[0]}, kubeletplugin.DriverName(arguments[0]), kubeletplugin.NodeName(arguments[1]),
		kubeletplugin.KubeClient(client), kubeletplugin.PluginDataDirectoryPath(data))
	if err != nil {
		return err
	}
	<-ctx.Done()
	helper.Stop()
	return nil
}

// PrepareResourceClaims gives a container the devices that the scheduler has chosen for its claims.
func (d draDriver) PrepareResourceClaims(_ context.Context, claims []*resource.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	prepared := map[types.UID]kubeletplugin.PrepareResult{}
	for _, claim := range claims {
		result := kubeletplugin.PrepareResult{}
		for _, one := range claim.Status.Allocation.Devices.Results {
			if one.Driver == d.name {
				device := kubeletplugin.Device{Requests: []string{one.Request}, PoolName: one.Pool, DeviceName: one.Device}
				result.Devices = append(result.Devices, device)
			}
		}
		prepared[claim.UID] = result
	}
	return prepared, nil
}

// UnprepareResourceClaims has nothing to undo.
func (d draDriver) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	undone := map[types.UID]error{}
	for _, claim := range claims {
		undone[claim.UID] = nil
	}
	return undone, nil
}

// HandleError says what went wrong meanwhile.
func (d draDriver) HandleError(_ context.Context, err error, message string) {
	fmt.Fprintln(os.Stderr, "dra-driver:", message, err)
}
