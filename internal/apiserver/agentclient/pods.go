// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package agentclient

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/internal/launcherpod/podstate"
)

// The label of the agents' Pods (KubeVirt's), and the field selector of a Pod's node.
const (
	appLabel     = "kubevirt.io"
	appHandler   = "virt-handler"
	nodeSelector = "spec.nodeName"
)

// finder finds the address of a node's agent.
type finder struct {
	reader    client.Reader
	namespace string
}

// noAgentError is returned if a node has no running agent.
type noAgentError struct{ reason string }

// Error implements error.
func (e *noAgentError) Error() string { return e.reason }

// address returns the IP address of a node's agent. While an agent is being replaced there may be two Pods: the ready one is
// preferred, then the new one. An old one serves requests while it waits for migrations.
func (f finder) address(ctx context.Context, node string) (string, error) {
	pods := &corev1.PodList{}
	err := f.reader.List(ctx, pods, client.InNamespace(f.namespace),
		client.MatchingLabels{appLabel: appHandler}, client.MatchingFields{nodeSelector: node})
	if err != nil {
		return "", fmt.Errorf("cannot list its Pods: %w", err)
	}
	var best, old *corev1.Pod
	for i := range pods.Items {
		pod := &pods.Items[i]
		switch {
		case pod.Status.PodIP == "" || pod.Status.Phase != corev1.PodRunning:
		case pod.DeletionTimestamp != nil:
			old = pod
		case podstate.Ready(pod):
			return pod.Status.PodIP, nil
		default:
			best = pod
		}
	}
	switch {
	case best != nil:
		return best.Status.PodIP, nil
	case old != nil:
		return old.Status.PodIP, nil
	case len(pods.Items) > 0:
		return "", &noAgentError{fmt.Sprintf("Pod %s does not run", pods.Items[0].Name)}
	default:
		return "", &noAgentError{"there is no virt-handler Pod"}
	}
}
