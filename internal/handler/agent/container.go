// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package agent

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/internal/launcherpod"
)

// containerOf returns what finds the ID of a launcher Pod's container compute, by what the kubelet says in the Pod's status. A Pod that is
// gone has none: its guest may still be there, and nobody can add a container to it any more.
func containerOf(cache client.Reader) func(types.UID) (string, error) {
	return func(uid types.UID) (string, error) {
		pods := &corev1.PodList{}
		// Nothing is changed. Copies of all Pods, whose owners decide how large they are, would be made for each launcher that connects.
		if err := cache.List(context.Background(), pods, client.UnsafeDisableDeepCopy); err != nil {
			return "", fmt.Errorf("list the node's launcher Pods: %w", err)
		}
		for i := range pods.Items {
			if pods.Items[i].UID != uid {
				continue
			}
			for _, status := range pods.Items[i].Status.ContainerStatuses {
				if _, id, found := strings.Cut(status.ContainerID, "://"); status.Name == launcherpod.ComputeContainer && found && id != "" {
					return id, nil
				}
			}
			return "", fmt.Errorf("the kubelet has not said yet which container of Pod %s/%s is %s",
				pods.Items[i].Namespace, pods.Items[i].Name, launcherpod.ComputeContainer)
		}
		return "", nil
	}
}
