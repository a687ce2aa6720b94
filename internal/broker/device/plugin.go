// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package device

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// resourcePrefix starts the names of the resources. Source: kubevirt/kubevirt pkg/virt-handler/device-manager
const resourcePrefix = "devices.kubevirt.io/"

// registerTimeout bounds a registration. If the kubelet does not respond, the next registration follows when its socket
// is recreated.
const registerTimeout = 10 * time.Second

// plugin serves a device to the kubelet on one socket.
type plugin struct {
	pluginapi.UnimplementedDevicePluginServer
	*Manager
	device
	// endpoint is the name of the plugin's socket.
	endpoint string
	// end ends the plugin with an error.
	end context.CancelCauseFunc
}

func (p *plugin) resource() string { return resourcePrefix + p.name }

// newEndpoint removes the sockets of earlier registrations of the device, and returns the name for a new one. The
// kubelet distinguishes plugins by their sockets: if one registers again before a kubelet of Kubernetes 1.36 or later
// has noticed that its former connection has ended, the kubelet refuses that socket until it is restarted. Meanwhile it
// cannot allocate the device, and reports that the node has it. The name is not that of virt-handler of earlier
// versions (kubevirt-kvm.sock and the like), which may run meanwhile, and removes its own socket when it ends.
// Source: kubernetes pkg/kubelet/cm/devicemanager, connectClient and PluginConnected.
func (p *plugin) newEndpoint() string {
	prefix := "kubevirt-broker-" + p.name + "."
	former, _ := filepath.Glob(filepath.Join(p.options.PluginDir, prefix+"*")) // its error is about the pattern
	for _, path := range former {
		_ = os.Remove(path) // the kubelet removes it when it starts
	}
	return prefix + rand.Text()[:8] + ".sock"
}

// errLeft means that the kubelet no longer follows a device. A kubelet of Kubernetes 1.35 or earlier leaves the plugin
// that has registered last when another one of the resource ends: that of an earlier version of virt-handler.
var errLeft = errors.New("the kubelet no longer follows the device")

// serve serves the device on its own socket and registers it with the kubelet. It returns why that has ended: when the
// context is done, or when the kubelet does not follow the device any more.
func (p *plugin) serve(ctx context.Context) error {
	p.endpoint = p.newEndpoint()
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", filepath.Join(p.options.PluginDir, p.endpoint))
	if err != nil {
		return fmt.Errorf("offer %s to the kubelet: %w", p.resource(), err)
	}
	server := grpc.NewServer()
	pluginapi.RegisterDevicePluginServer(server, p)
	running, end := context.WithCancelCause(ctx)
	p.end = end
	go func() { end(fmt.Errorf("serve %s to the kubelet: %w", p.resource(), server.Serve(listener))) }()
	defer server.Stop()
	if err := p.register(ctx); err != nil {
		return err
	}
	p.set(p.registered, p.device, true)
	<-running.Done()
	return context.Cause(running)
}

// connectParams has short delays. The kubelet's socket exists a moment before the kubelet listens, and the node gets no
// guests until the devices are registered. A late registration can also stop guests: see ADR 18.
var connectParams = grpc.ConnectParams{
	Backoff: backoff.Config{BaseDelay: 5 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2,
		MaxDelay: time.Second},
	MinConnectTimeout: time.Second,
}

func (p *plugin) register(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, registerTimeout)
	defer cancel()
	socket := filepath.Join(p.options.PluginDir, filepath.Base(pluginapi.KubeletSocket))
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)), grpc.WithConnectParams(connectParams))
	if err != nil {
		return fmt.Errorf("connect to the kubelet: %w", err)
	}
	defer func() { _ = conn.Close() }()
	_, err = pluginapi.NewRegistrationClient(conn).Register(ctx, &pluginapi.RegisterRequest{
		Version: pluginapi.Version, Endpoint: p.endpoint, ResourceName: p.resource(),
		Options: &pluginapi.DevicePluginOptions{},
	})
	if err != nil {
		return fmt.Errorf("register %s with the kubelet: %w", p.resource(), err)
	}
	return nil
}

// GetDevicePluginOptions returns no options: the kubelet only calls Allocate.
func (p *plugin) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{}, nil
}

// ListAndWatch sends the devices now and after each change, until the kubelet leaves.
func (p *plugin) ListAndWatch(_ *pluginapi.Empty, stream pluginapi.DevicePlugin_ListAndWatchServer) error {
	defer p.end(errLeft)
	for sent := ""; ; {
		changed := p.Changed()
		health := pluginapi.Unhealthy
		if p.isOffered(p.device) {
			health = pluginapi.Healthy
		}
		if health != sent {
			count := p.count
			if count == 0 {
				count = p.options.Count
			}
			list := make([]*pluginapi.Device, count)
			for i := range list {
				list[i] = &pluginapi.Device{ID: p.name + strconv.Itoa(i), Health: health}
			}
			if err := stream.Send(&pluginapi.ListAndWatchResponse{Devices: list}); err != nil {
				return err
			}
			sent = health
		}
		select {
		case <-stream.Context().Done():
			return nil
		case <-changed:
		}
	}
}

// Allocate adds the device file to a container, once for any number of devices. An optional device that the node does
// not have is left out. The container runtime creates the file in the Pod.
func (p *plugin) Allocate(_ context.Context, r *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	response := &pluginapi.AllocateResponse{}
	for range r.ContainerRequests {
		container := &pluginapi.ContainerAllocateResponse{}
		if !p.optional || p.present(p.device) {
			container.Devices = []*pluginapi.DeviceSpec{{HostPath: p.path, ContainerPath: p.path, Permissions: "rw"}}
		}
		response.ContainerResponses = append(response.ContainerResponses, container)
	}
	return response, nil
}
