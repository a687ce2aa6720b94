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

// kubeletTimeout bounds a question to the kubelet, which may be starting.
const kubeletTimeout = 5 * time.Second

// podResourcesSocket is the kubelet's socket in its pod-resources directory. Source: kubernetes
// pkg/kubelet/apis/podresources/constants.go.
const podResourcesSocket = "kubelet.sock"

// PodResources asks a kubelet through the socket in which it tells of the resources that it gave out.
type PodResources struct {
	// Dir is the kubelet's pod-resources directory.
	Dir string
}

// GivesWholeCPUs says that the kubelet gives Guaranteed containers CPUs for themselves: only then it has any to give.
// KubeVirt looks for the static policy in the file cpu_manager_state, which lies beside the kubelet's credentials.
// Source: kubernetes pkg/kubelet/cm/cpumanager/policy_none.go (GetAllocatableCPUs).
func (p PodResources) GivesWholeCPUs(ctx context.Context) (bool, error) {
	var answer *podresources.AllocatableResourcesResponse
	err := p.ask(ctx, func(ctx context.Context, kubelet podresources.PodResourcesListerClient) (err error) {
		answer, err = kubelet.GetAllocatableResources(ctx, &podresources.AllocatableResourcesRequest{})
		return err
	})
	if err != nil {
		return false, fmt.Errorf("ask the kubelet which CPUs it can give away: %w", err)
	}
	return len(answer.GetCpuIds()) > 0, nil
}

// ExclusiveCPUs are the CPUs that the kubelet has given to a container of a Pod for itself: nothing else that it runs is on them. There
// are none if the container shares all of its CPUs, or if the kubelet has no such container.
// Source: kubernetes pkg/kubelet/apis/podresources/server_v1.go, where CpuIds are the CPU manager's GetExclusiveCPUs.
func (p PodResources) ExclusiveCPUs(ctx context.Context, pod types.NamespacedName, container string) ([]uint, error) {
	var answer *podresources.ListPodResourcesResponse
	err := p.ask(ctx, func(ctx context.Context, kubelet podresources.PodResourcesListerClient) (err error) {
		answer, err = kubelet.List(ctx, &podresources.ListPodResourcesRequest{})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("ask the kubelet which CPUs it has given to Pod %s: %w", pod, err)
	}
	var cpus []uint
	for _, p := range answer.GetPodResources() {
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

// ask asks the kubelet something.
func (p PodResources) ask(ctx context.Context, question func(context.Context, podresources.PodResourcesListerClient) error) error {
	ctx, cancel := context.WithTimeout(ctx, kubeletTimeout)
	defer cancel()
	conn, err := grpc.NewClient("unix://"+filepath.Join(p.Dir, podResourcesSocket),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("connect to the kubelet: %w", err)
	}
	defer func() { _ = conn.Close() }()
	return question(ctx, podresources.NewPodResourcesListerClient(conn))
}

// rtRuntime is the part of each period that realtime threads may run; -1 means all of it.
// Source: Linux Documentation/scheduler/sched-rt-group.rst.
const rtRuntime = "/proc/sys/kernel/sched_rt_runtime_us"

// RealtimeCapable says that the node's kernel lets realtime threads run for as long as they want, which is what
// KubeVirt asks of a node for realtime guests. A kernel without the setting does not.
func RealtimeCapable() (bool, error) { return realtimeCapable(rtRuntime) }

func realtimeCapable(path string) (bool, error) {
	text, err := os.ReadFile(path) //nolint:gosec // a constant but for the test
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for realtime guests: %w", err)
	}
	return strings.TrimSpace(string(text)) == "-1", nil
}
