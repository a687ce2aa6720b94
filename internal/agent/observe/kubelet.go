// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package observe

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/apimachinery/pkg/types"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// kubeletTimeout bounds a call of the kubelet, which may be starting.
const kubeletTimeout = 5 * time.Second

// podResourcesSocket is the kubelet's socket in its pod-resources directory. Source: kubernetes
// pkg/kubelet/apis/podresources/constants.go.
const podResourcesSocket = "kubelet.sock"

// PodResources calls the kubelet's pod resources API.
type PodResources struct {
	// Dir is the kubelet's pod-resources directory.
	Dir string
}

// HasStaticCPUPolicy reports whether the kubelet assigns exclusive CPUs to Guaranteed containers: only then it has allocatable CPUs.
// KubeVirt reads the policy from the file cpu_manager_state, which is in the directory of the kubelet's credentials.
// Source: kubernetes pkg/kubelet/cm/cpumanager/policy_none.go (GetAllocatableCPUs).
func (p PodResources) HasStaticCPUPolicy(ctx context.Context) (bool, error) {
	var response *podresources.AllocatableResourcesResponse
	err := p.call(ctx, func(ctx context.Context, kubelet podresources.PodResourcesListerClient) (err error) {
		response, err = kubelet.GetAllocatableResources(ctx, &podresources.AllocatableResourcesRequest{})
		return err
	})
	if err != nil {
		return false, fmt.Errorf("get the allocatable CPUs from the kubelet: %w", err)
	}
	return len(response.GetCpuIds()) > 0, nil
}

// ExclusiveCPUs returns the CPUs that the kubelet has assigned to a container of a Pod exclusively. There are none if the
// container has shared CPUs only, or if the kubelet has no such container.
// Source: kubernetes pkg/kubelet/apis/podresources/server_v1.go, where CpuIds are the CPU manager's GetExclusiveCPUs.
func (p PodResources) ExclusiveCPUs(ctx context.Context, pod types.NamespacedName, container string) ([]uint, error) {
	var response *podresources.ListPodResourcesResponse
	err := p.call(ctx, func(ctx context.Context, kubelet podresources.PodResourcesListerClient) (err error) {
		response, err = kubelet.List(ctx, &podresources.ListPodResourcesRequest{})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("get the CPUs of Pod %s from the kubelet: %w", pod, err)
	}
	var cpus []uint
	for _, p := range response.GetPodResources() {
		if p.GetNamespace() != pod.Namespace || p.GetName() != pod.Name {
			continue
		}
		for _, c := range p.GetContainers() {
			if c.GetName() != container {
				continue
			}
			for _, cpu := range c.GetCpuIds() {
				cpus = append(cpus, uint(max(cpu, 0)))
			}
		}
	}
	return cpus, nil
}

// call connects to the kubelet and calls fn with a client.
func (p PodResources) call(ctx context.Context, fn func(context.Context, podresources.PodResourcesListerClient) error) error {
	ctx, cancel := context.WithTimeout(ctx, kubeletTimeout)
	defer cancel()
	conn, err := grpc.NewClient("unix://"+filepath.Join(p.Dir, podResourcesSocket),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("connect to the kubelet: %w", err)
	}
	defer func() { _ = conn.Close() }()
	return fn(ctx, podresources.NewPodResourcesListerClient(conn))
}

// rtRuntime is the part of each period in which realtime threads may run; -1 means all of it.
// Source: Linux Documentation/scheduler/sched-rt-group.rst.
const rtRuntime = "/proc/sys/kernel/sched_rt_runtime_us"

// RealtimeCapable reports whether the node's kernel does not limit the run time of realtime threads, KubeVirt's condition for
// realtime guests. It returns false for a kernel without the setting.
func RealtimeCapable() (bool, error) { return realtimeCapable(rtRuntime) }

func realtimeCapable(path string) (bool, error) {
	text, err := os.ReadFile(path) //nolint:gosec // a constant but for the test
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read the limit for realtime threads: %w", err)
	}
	return strings.TrimSpace(string(text)) == "-1", nil
}
