// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package kit

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/internal/podspec"
)

// CreatePod creates a Pod. If a LimitRange of its namespace refuses the resources of a container of Vireo's own, it
// creates the Pod with what the LimitRange demands. LimitRanges are read only then: few namespaces have such a one.
func CreatePod(ctx context.Context, c client.Client, apiReader client.Reader, pod *corev1.Pod, container string) error {
	err := c.Create(ctx, pod)
	if !apierrors.IsForbidden(err) {
		return err
	}
	ranges, failed := LimitRanges(ctx, apiReader, pod.Namespace)
	if failed != nil {
		return errors.Join(err, failed)
	}
	if !podspec.Fit(pod, container, ranges) {
		return err
	}
	return c.Create(ctx, pod)
}
