package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	devices "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// How often the plugin looks for its socket, which a kubelet that starts removes, and for devices that became healthy or not.
const devicePluginLook = 200 * time.Millisecond

// devicePlugin hands out devices that do not exist, through the kubelet's own API: a container learns the names of its devices from an
// environment variable, as from NVIDIA's plugin. It speaks for a node: `device-plugin nvidia.com/gpu 4 n1- FILE` has n1-0 to n1-3, and those
// that FILE names, one a line, are unhealthy.
type devicePlugin struct {
	devices.UnimplementedDevicePluginServer
	resource, prefix, unhealthy string
	count                       int
}

// DEVICES is what a container's devices are called in its environment.
const DEVICES = "NVIDIA_VISIBLE_DEVICES"

func runDevicePlugin(arguments []string) error {
	if len(arguments) != 4 {
		return fmt.Errorf("device-plugin RESOURCE COUNT PREFIX FILE, not %q", arguments)
	}
	count, err := strconv.Atoi(arguments[1])
	if err != nil {
		return err
	}
	plugin := &devicePlugin{resource: arguments[0], count: count, prefix: arguments[2], unhealthy: arguments[3]}
	socket := devices.DevicePluginPath + strings.ReplaceAll(plugin.resource, "/", "-") + ".sock"
	for {
		if err := plugin.serve(socket); err != nil {
			fmt.Fprintln(os.Stderr, "device-plugin:", err)
		}
		time.Sleep(devicePluginLook)
	}
}

// serve until the kubelet has removed the socket.
func (p *devicePlugin) serve(socket string) error {
	if err := os.Remove(socket); err != nil && !os.IsNotExist(err) {
		return err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	defer server.Stop()
	devices.RegisterDevicePluginServer(server, p)
	go func() { _ = server.Serve(listener) }()
	if err := p.register(filepath.Base(socket)); err != nil {
		return err
	}
	for {
		if _, err := os.Stat(socket); err != nil {
			return err
		}
		time.Sleep(devicePluginLook)
	}
}

func (p *devicePlugin) register(endpoint string) error {
	connection, err := grpc.NewClient("unix://"+devices.KubeletSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	request := &devices.RegisterRequest{Version: devices.Version, Endpoint: endpoint, ResourceName: p.resource}
	_, err = devices.NewRegistrationClient(connection).Register(ctx, request)
	return err
}

func (p *devicePlugin) GetDevicePluginOptions(context.Context, *devices.Empty) (*devices.DevicePluginOptions, error) {
	return &devices.DevicePluginOptions{}, nil
}

// ListAndWatch sends all devices, again whenever one became healthy or not.
func (p *devicePlugin) ListAndWatch(_ *devices.Empty, stream devices.DevicePlugin_ListAndWatchServer) error {
	var sent []string
	for first := true; stream.Context().Err() == nil; first = false {
		ill := p.ill()
		if first || !slices.Equal(ill, sent) {
			answer := &devices.ListAndWatchResponse{}
			for i := range p.count {
				one := &devices.Device{ID: p.prefix + strconv.Itoa(i), Health: devices.Healthy}
				if slices.Contains(ill, one.ID) {
					one.Health = devices.Unhealthy
				}
				answer.Devices = append(answer.Devices, one)
			}
			if err := stream.Send(answer); err != nil {
				return err
			}
			sent = ill
		}
		time.Sleep(devicePluginLook)
	}
	return stream.Context().Err()
}

// ill are the devices that are not healthy now.
func (p *devicePlugin) ill() []string {
	said, _ := os.ReadFile(p.unhealthy) // none where there is no such file
	return strings.Fields(string(said))
}

// Allocate gives a container the devices that the kubelet has chosen.
func (p *devicePlugin) Allocate(_ context.Context, request *devices.AllocateRequest) (*devices.AllocateResponse, error) {
	answer := &devices.AllocateResponse{}
	for _, container := range request.ContainerRequests {
		given := strings.Join(container.DevicesIds, ",")
		answer.ContainerResponses = append(answer.ContainerResponses,
			&devices.ContainerAllocateResponse{Envs: map[string]string{DEVICES: given}})
	}
	return answer, nil
}
