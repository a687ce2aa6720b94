// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package device

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/vireo-project/vireo/internal/wire/brokerapi"
)

// kubeletTimeout bounds a call of the kubelet, which may be starting.
const kubeletTimeout = 5 * time.Second

// maxResponse bounds a response of the kubelet, in bytes. It is the kubelet's own limit: nodes with many devices need
// more than gRPC's.
const maxResponse = 16 << 20

// socket is the kubelet's socket in its pod-resources directory. Source: kubernetes
// pkg/kubelet/apis/podresources/constants.go.
const socket = "kubelet.sock"

// PodResources calls the API.
type PodResources struct {
	// Dir is the kubelet's pod-resources directory.
	Dir string
}

// HasStaticCPUPolicy reports whether the kubelet assigns exclusive CPUs to Guaranteed containers: only then it has
// allocatable CPUs. KubeVirt reads the policy from the file cpu_manager_state, which is in the directory of the
// kubelet's credentials. Source: kubernetes pkg/kubelet/cm/cpumanager/policy_none.go (GetAllocatableCPUs).
func (c PodResources) HasStaticCPUPolicy(ctx context.Context) (bool, error) {
	response, err := call(ctx, c, podresources.PodResourcesListerClient.GetAllocatableResources,
		&podresources.AllocatableResourcesRequest{})
	if err != nil {
		return false, fmt.Errorf("get the allocatable CPUs from the kubelet: %w", err)
	}
	return len(response.GetCpuIds()) > 0, nil
}

// ExclusiveCPUs returns the CPUs that the kubelet has assigned to a container of a Pod exclusively. There are none if
// the container has shared CPUs only, or if the kubelet has no such container. Source: kubernetes
// pkg/kubelet/apis/podresources/server_v1.go, where CpuIds are the CPU manager's GetExclusiveCPUs.
func (c PodResources) ExclusiveCPUs(ctx context.Context, namespace, name, container string) ([]uint, error) {
	response, err := call(ctx, c, podresources.PodResourcesListerClient.List, &podresources.ListPodResourcesRequest{})
	if err != nil {
		return nil, fmt.Errorf("get the CPUs of Pod %s/%s from the kubelet: %w", namespace, name, err)
	}
	var cpus []uint
	for _, pod := range response.GetPodResources() {
		if pod.GetNamespace() != namespace || pod.GetName() != name {
			continue
		}
		for _, assigned := range pod.GetContainers() {
			if assigned.GetName() != container {
				continue
			}
			for _, cpu := range assigned.GetCpuIds() {
				cpus = append(cpus, uint(cpu))
			}
		}
	}
	return cpus, nil
}

// method is a method of the kubelet.
type method[Q, R any] func(podresources.PodResourcesListerClient, context.Context, *Q, ...grpc.CallOption) (*R, error)

// call connects to the kubelet and calls a method.
func call[Q, R any](ctx context.Context, c PodResources, does method[Q, R], request *Q) (*R, error) {
	ctx, cancel := context.WithTimeout(ctx, kubeletTimeout)
	defer cancel()
	conn, err := grpc.NewClient("unix://"+filepath.Join(c.Dir, socket),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxResponse)))
	if err != nil {
		return nil, fmt.Errorf("connect to the kubelet: %w", err)
	}
	defer func() { _ = conn.Close() }()
	response, err := does(podresources.NewPodResourcesListerClient(conn), ctx, request)
	if status.Code(err) == codes.ResourceExhausted {
		err = &brokerapi.Error{Code: brokerapi.CodeBusy, Message: "the kubelet has too many requests: retry: " + err.Error()}
	}
	return response, err
}
