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

// containerOf returns a function that returns the ID of a launcher Pod's container compute, from the Pod's status. The ID is
// empty if the Pod was deleted: its guest may still run, but no container can be added to it any more.
func containerOf(cache client.Reader) func(types.UID) (string, error) {
	return func(uid types.UID) (string, error) {
		pods := &corev1.PodList{}
		// The Pods are only read. Otherwise all of them, of any size, would be copied for each launcher that connects.
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
			return "", fmt.Errorf("the status of Pod %s/%s has no ID of the container %s yet",
				pods.Items[i].Namespace, pods.Items[i].Name, launcherpod.ComputeContainer)
		}
		return "", nil
	}
}
