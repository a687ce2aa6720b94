// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package agent

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// The label of the agents' Pods, KubeVirt's, and the field of a Pod that the API server selects by.
const (
	appLabel     = "kubevirt.io"
	appHandler   = "virt-handler"
	nodeSelector = "spec.nodeName"
)

// finder finds agents.
type finder struct {
	reader    client.Reader
	namespace string
}

// absent says that there is no agent to ask.
type absent struct{ why string }

// Error is why.
func (a *absent) Error() string { return a.why }

// address returns that of the agent of a node. While an agent is replaced there may be two Pods: the one that is ready counts.
func (f finder) address(ctx context.Context, node string) (string, error) {
	pods := &corev1.PodList{}
	err := f.reader.List(ctx, pods, client.InNamespace(f.namespace),
		client.MatchingLabels{appLabel: appHandler}, client.MatchingFields{nodeSelector: node})
	if err != nil {
		return "", fmt.Errorf("cannot look for its Pod: %w", err)
	}
	var best *corev1.Pod
	for i := range pods.Items {
		pod := &pods.Items[i]
		switch {
		case pod.Status.PodIP == "" || pod.Status.Phase != corev1.PodRunning || pod.DeletionTimestamp != nil:
		case isReady(pod):
			return pod.Status.PodIP, nil
		default:
			best = pod
		}
	}
	switch {
	case best != nil:
		return best.Status.PodIP, nil
	case len(pods.Items) > 0:
		return "", &absent{fmt.Sprintf("its Pod %s does not run", pods.Items[0].Name)}
	default:
		return "", &absent{"there is no virt-handler Pod on that node"}
	}
}

func isReady(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}
