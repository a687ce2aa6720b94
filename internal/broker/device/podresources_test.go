// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package device

import (
	"context"
	"net"
	"path/filepath"
	"slices"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/vireo-project/vireo/internal/wire/brokerapi"
)

// kubelet is a fake of the kubelet's pod resources API.
type resourcesKubelet struct {
	podresources.UnimplementedPodResourcesListerServer

	cpus []int64
	pods []*podresources.PodResources
	err  error
}

func (k *resourcesKubelet) List(
	context.Context, *podresources.ListPodResourcesRequest,
) (*podresources.ListPodResourcesResponse, error) {
	return &podresources.ListPodResourcesResponse{PodResources: k.pods}, k.err
}

func (k *resourcesKubelet) GetAllocatableResources(
	context.Context, *podresources.AllocatableResourcesRequest,
) (*podresources.AllocatableResourcesResponse, error) {
	return &podresources.AllocatableResourcesResponse{CpuIds: k.cpus}, nil
}

func (k *resourcesKubelet) serve(t *testing.T) PodResources {
	t.Helper()
	dir := t.TempDir()
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "unix", filepath.Join(dir, socket))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(server, k)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return PodResources{Dir: dir}
}

// virt-handler tries again soon what the kubelet refuses because of its rate limit.
func TestKubeletIsBusy(t *testing.T) {
	for code, want := range map[codes.Code]brokerapi.Code{codes.ResourceExhausted: brokerapi.CodeBusy,
		codes.Internal: ""} {
		_, err := (&resourcesKubelet{err: status.Error(code, "rejected")}).serve(t).ExclusiveCPUs(t.Context(), "ns", "pod",
			"compute")
		if got := brokerapi.CodeOf(err); err == nil || got != want {
			t.Errorf("%s became %q: %v", code, got, err)
		}
	}
}

func TestGivesWholeCPUs(t *testing.T) {
	for _, cpus := range [][]int64{nil, {2, 3}} {
		got, err := (&resourcesKubelet{cpus: cpus}).serve(t).HasStaticCPUPolicy(context.Background())
		if err != nil || got != (cpus != nil) {
			t.Errorf("with the allocatable CPUs %v: %t, %v", cpus, got, err)
		}
	}
	if _, err := (PodResources{Dir: t.TempDir()}).HasStaticCPUPolicy(context.Background()); err == nil {
		t.Error("no error without a kubelet")
	}
}

func TestExclusiveCPUs(t *testing.T) {
	pod := func(namespace, name, container string, cpus ...int64) *podresources.PodResources {
		return &podresources.PodResources{Namespace: namespace, Name: name, Containers: []*podresources.ContainerResources{
			{Name: "sidecar", CpuIds: []int64{15}}, {Name: container, CpuIds: cpus},
		}}
	}
	k := &resourcesKubelet{pods: []*podresources.PodResources{
		pod("ns", "whole", "compute", 2, 3), pod("ns", "shares", "compute"), pod("other", "alone", "compute", 4),
		pod("ns", "without", "main", 5),
	}}
	p := k.serve(t)
	for name, want := range map[string][]uint{"whole": {2, 3}, "shares": nil, "alone": nil, "without": nil, "gone": nil} {
		got, err := p.ExclusiveCPUs(t.Context(), "ns", name, "compute")
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	if _, err := (PodResources{Dir: t.TempDir()}).ExclusiveCPUs(t.Context(), "", "", "compute"); err == nil {
		t.Error("no error without a kubelet")
	}
}
