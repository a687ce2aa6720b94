// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package observe

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/types"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/vireo-project/vireo/internal/domain"
)

// kubelet is a fake of the kubelet's pod resources API.
type kubelet struct {
	podresources.UnimplementedPodResourcesListerServer

	cpus []int64
	pods []*podresources.PodResources
}

func (k *kubelet) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	return &podresources.ListPodResourcesResponse{PodResources: k.pods}, nil
}

func (k *kubelet) GetAllocatableResources(
	context.Context, *podresources.AllocatableResourcesRequest,
) (*podresources.AllocatableResourcesResponse, error) {
	return &podresources.AllocatableResourcesResponse{CpuIds: k.cpus}, nil
}

func (k *kubelet) serve(t *testing.T) PodResources {
	t.Helper()
	dir := t.TempDir()
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "unix", filepath.Join(dir, podResourcesSocket))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(server, k)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return PodResources{Dir: dir}
}

func TestGivesWholeCPUs(t *testing.T) {
	for _, cpus := range [][]int64{nil, {2, 3}} {
		got, err := (&kubelet{cpus: cpus}).serve(t).HasStaticCPUPolicy(context.Background())
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
	k := &kubelet{pods: []*podresources.PodResources{
		pod("ns", "whole", "compute", 2, 3), pod("ns", "shares", "compute"), pod("other", "alone", "compute", 4), pod("ns", "without", "main", 5),
	}}
	p := k.serve(t)
	for name, want := range map[string][]uint{"whole": {2, 3}, "shares": nil, "alone": nil, "without": nil, "gone": nil} {
		got, err := p.ExclusiveCPUs(t.Context(), types.NamespacedName{Namespace: "ns", Name: name}, "compute")
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s: %v %s", name, err, diff)
		}
	}
	if _, err := (PodResources{Dir: t.TempDir()}).ExclusiveCPUs(t.Context(), types.NamespacedName{}, "compute"); err == nil {
		t.Error("no error without a kubelet")
	}
}

func TestRealtimeCapable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sched_rt_runtime_us")
	if got, err := realtimeCapable(path); got || err != nil {
		t.Errorf("a kernel without the setting: %t, %v", got, err)
	}
	for text, want := range map[string]bool{"-1\n": true, "950000\n": false, "": false} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := realtimeCapable(path); got != want || err != nil {
			t.Errorf("%q: %t, %v", text, got, err)
		}
	}
	if _, err := realtimeCapable(t.TempDir()); err == nil {
		t.Error("no error for a directory")
	}
}

func TestReadTopology(t *testing.T) {
	got, err := ReadTopology("testdata")
	if err != nil {
		t.Fatal(err)
	}
	want := []domain.NUMACellFact{
		{ID: 0, CPUs: []domain.CPUFact{{ID: 0, Siblings: []uint{0, 2}}, {ID: 2, Siblings: []uint{0, 2}}}},
		{ID: 1, CPUs: []domain.CPUFact{{ID: 1, Siblings: []uint{1, 3}}, {ID: 3, Siblings: []uint{3}}}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if _, err := ReadTopology(t.TempDir()); err == nil {
		t.Error("no error for a missing file")
	}
}
