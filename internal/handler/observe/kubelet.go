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
	ctx, cancel := context.WithTimeout(ctx, kubeletTimeout)
	defer cancel()
	conn, err := grpc.NewClient("unix://"+filepath.Join(p.Dir, podResourcesSocket),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return false, fmt.Errorf("connect to the kubelet: %w", err)
	}
	defer func() { _ = conn.Close() }()
	answer, err := podresources.NewPodResourcesListerClient(conn).GetAllocatableResources(ctx, &podresources.AllocatableResourcesRequest{})
	if err != nil {
		return false, fmt.Errorf("ask the kubelet which CPUs it can give away: %w", err)
	}
	return len(answer.GetCpuIds()) > 0, nil
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
