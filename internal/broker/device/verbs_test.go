// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package device

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	kubeletapi "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/vireo-project/vireo/internal/broker/podresources"
	"github.com/vireo-project/vireo/internal/brokerapi"
)

// slowKubelet counts how many requests it has at the same time.
type slowKubelet struct {
	kubeletapi.UnimplementedPodResourcesListerServer

	mu        sync.Mutex
	now, most int
}

func (k *slowKubelet) List(context.Context, *kubeletapi.ListPodResourcesRequest) (*kubeletapi.ListPodResourcesResponse, error) {
	k.add(1)
	time.Sleep(20 * time.Millisecond)
	k.add(-1)
	return &kubeletapi.ListPodResourcesResponse{}, nil
}

func (k *slowKubelet) add(number int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.now += number
	k.most = max(k.most, k.now)
}

// The kubelet limits requests. Guests that start at the same time must not have it refuse each other's.
func TestFewRequestsToTheKubelet(t *testing.T) {
	dir, logs, kubelet := t.TempDir(), t.TempDir(), &slowKubelet{}
	listener, err := net.Listen("unix", filepath.Join(dir, "kubelet.sock"))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	kubeletapi.RegisterPodResourcesListerServer(server, kubelet)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	verb := Verbs(nil, podresources.Client{Dir: dir}, logs)[brokerapi.ExclusiveCPUs]
	var requests sync.WaitGroup
	for i := range 40 {
		pod := fmt.Sprintf("0b7a6b0e-6d53-4f0b-9a41-3a1d8f1f7a%02d", i)
		if err := os.Mkdir(filepath.Join(logs, "ns_pod_"+pod), 0o755); err != nil {
			t.Fatal(err)
		}
		requests.Go(func() {
			task, err := verb(pod, nil)
			if err != nil {
				t.Error(err)
				return
			}
			answer, err := task.Do(t.Context(), pod)
			if err != nil {
				t.Error(err)
			}
			answer.Close()
		})
	}
	requests.Wait()
	if kubelet.most > kubeletCalls {
		t.Errorf("the kubelet has got %d requests at the same time, more than %d", kubelet.most, kubeletCalls)
	}
}
