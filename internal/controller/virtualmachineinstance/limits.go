// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstance

import (
	"context"
	"fmt"
	"math"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/podspec"
)

// readRequiredLimits finds out which limits the Pod must have although the VMI does not set them.
func (s *scope) readRequiredLimits(ctx context.Context) error {
	if !s.preparing() || s.pod != nil || s.problem != nil {
		return nil
	}
	return SetRequiredLimits(ctx, s.client, s.apiReader, s.vmi, s.config.AutoCPULimitNamespaces, &s.podConfig)
}

// SetRequiredLimits sets in the configuration of a launcher Pod the limits that it must have although its VMI does not
// set them. A quota refuses Pods without the limits that it counts. A CPU limit is also required if autoCPU selects the
// namespace. quotas reads from a cache. apiReader reads the namespace, if its labels matter.
func SetRequiredLimits(
	ctx context.Context, quotas, apiReader client.Reader, vmi *v1.VirtualMachineInstance, autoCPU labels.Selector,
	config *podspec.Config,
) error {
	list := &corev1.ResourceQuotaList{}
	if err := quotas.List(ctx, list, client.InNamespace(vmi.Namespace)); err != nil {
		return fmt.Errorf("list the quotas of namespace %s: %w", vmi.Namespace, err)
	}
	for i := range list.Items {
		_, cpu := list.Items[i].Spec.Hard[corev1.ResourceLimitsCPU]
		_, memory := list.Items[i].Spec.Hard[corev1.ResourceLimitsMemory]
		config.LimitCPU, config.LimitMemory = config.LimitCPU || cpu, config.LimitMemory || memory
	}
	if !config.LimitMemory && (config.LimitCPU || autoCPU == nil) {
		return nil
	}
	namespace := &metav1.PartialObjectMetadata{}
	namespace.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	if err := apiReader.Get(ctx, client.ObjectKey{Name: vmi.Namespace}, namespace); err != nil {
		return fmt.Errorf("get namespace %s: %w", vmi.Namespace, err)
	}
	config.LimitCPU = config.LimitCPU || autoCPU != nil && autoCPU.Matches(labels.Set(namespace.Labels))
	config.MemoryLimitRatio = memoryLimitRatio(namespace.Labels)
	return nil
}

// memoryLimitRatio is the value of the namespace's label, or 0. As in KubeVirt, an invalid value is ignored.
func memoryLimitRatio(labels map[string]string) float64 {
	ratio, err := strconv.ParseFloat(labels[v1.AutoMemoryLimitsRatioLabel], 64)
	if err != nil || math.IsNaN(ratio) || math.IsInf(ratio, 0) || ratio < 1 || ratio > maxMemoryLimitRatio {
		return 0
	}
	return ratio
}

// maxMemoryLimitRatio keeps a limit within the range of a quantity.
const maxMemoryLimitRatio = 1 << 10
