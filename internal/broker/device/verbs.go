// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package device

import (
	"context"

	"github.com/vireo-project/vireo/internal/broker/podresources"
	"github.com/vireo-project/vireo/internal/broker/pods"
	"github.com/vireo-project/vireo/internal/broker/server"
	"github.com/vireo-project/vireo/internal/brokerapi"
	"github.com/vireo-project/vireo/internal/launcherpod/layout"
)

// kubeletCalls is how many requests to the kubelet are in flight, for all Pods: it permits a burst of ten, and then 100 in a second.
// Source: kubernetes pkg/kubelet/apis/podresources/constants.go.
const kubeletCalls = 8

// Devices are the node's devices for guests.
type Devices interface {
	// Usable reports whether the devices that every guest needs are available, whether KVM is, and whether that is known.
	Usable() (usable, kvm, known bool)
	// Changed returns a channel that is closed when the result of Usable may have changed.
	Changed() <-chan struct{}
}

// verbs are the verbs about what the kubelet assigns to guests.
type verbs struct {
	devices    Devices
	kubelet    podresources.Client
	podLogsDir string
	// limit limits the requests to the kubelet.
	limit *server.Limiter
}

// Verbs returns the verbs about what the kubelet assigns to guests, given the node's devices, the kubelet, and its directory with the logs of
// Pods.
func Verbs(devices Devices, kubelet podresources.Client, podLogsDir string) server.Verbs {
	v := verbs{
		devices: devices, kubelet: kubelet, podLogsDir: podLogsDir,
		limit: server.NewLimiter(kubeletCalls, 256, "too many requests to the kubelet are in flight: retry").InAll(kubeletCalls),
	}
	return server.Verbs{
		brokerapi.WatchDevices:  server.With(v.watchDevices),
		brokerapi.CPUPolicy:     server.With(v.cpuPolicy),
		brokerapi.ExclusiveCPUs: server.With(v.exclusiveCPUs),
	}
}

// watchDevices reports the state of the node's devices.
func (v verbs) watchDevices(string, server.None) (server.Task, error) {
	return server.Task{Watch: func() (server.Answer, <-chan struct{}) {
		changed := v.devices.Changed()
		usable, kvm, known := v.devices.Usable()
		return server.Answer{Result: brokerapi.DevicesResult{Known: known, Usable: usable, KVM: kvm}}, changed
	}}, nil
}

// cpuPolicy reads from the kubelet whether it assigns exclusive CPUs.
func (v verbs) cpuPolicy(string, server.None) (server.Task, error) {
	return server.Task{Limit: v.limit, Run: func(ctx context.Context) (server.Answer, error) {
		static, err := v.kubelet.HasStaticCPUPolicy(ctx)
		return server.Answer{Result: brokerapi.CPUPolicyResult{Static: static}}, err
	}}, nil
}

// exclusiveCPUs reads from the kubelet which CPUs it has assigned to the guest of a Pod exclusively.
func (v verbs) exclusiveCPUs(pod string, _ server.None) (server.Task, error) {
	return server.Task{Limit: v.limit, Run: func(ctx context.Context) (server.Answer, error) {
		namespace, name, err := pods.Name(v.podLogsDir, pod)
		if err != nil {
			return server.Answer{}, err
		}
		cpus, err := v.kubelet.ExclusiveCPUs(ctx, namespace, name, layout.ComputeContainer)
		return server.Answer{Result: brokerapi.CPUsResult{CPUs: cpus}}, err
	}}, nil
}
