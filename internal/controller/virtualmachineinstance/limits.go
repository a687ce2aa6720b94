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

// readLimits finds out which limits the Pod must have though the VMI does not name them.
func readLimits(ctx context.Context, s *Scope) error {
	if !s.preparing() || s.Pod != nil || s.Problem != nil {
		return nil
	}
	return DemandLimits(ctx, s.Client, s.Live, s.VMI, s.AutoCPULimit, &s.Config)
}

// DemandLimits says in the configuration of a launcher Pod which limits it must have though its VMI does not name them: those that
// a quota of the namespace counts, by which a Pod without them is refused, and that of CPU where the namespace is selected for it.
// quotas reads from the cache; live is asked for the namespace where its labels matter.
func DemandLimits(
	ctx context.Context, quotas, live client.Reader, vmi *v1.VirtualMachineInstance, autoCPU labels.Selector, config *podspec.Config,
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
	if err := live.Get(ctx, client.ObjectKey{Name: vmi.Namespace}, namespace); err != nil {
		return fmt.Errorf("get namespace %s: %w", vmi.Namespace, err)
	}
	config.LimitCPU = config.LimitCPU || autoCPU != nil && autoCPU.Matches(labels.Set(namespace.Labels))
	config.MemoryLimitRatio = memoryLimitRatio(namespace.Labels)
	return nil
}

// memoryLimitRatio is what the namespace says, or 0. As in KubeVirt, a value that makes no sense is none.
func memoryLimitRatio(of map[string]string) float64 {
	ratio, err := strconv.ParseFloat(of[v1.AutoMemoryLimitsRatioLabel], 64)
	if err != nil || math.IsNaN(ratio) || math.IsInf(ratio, 0) || ratio < 1 || ratio > maxMemoryLimitRatio {
		return 0
	}
	return ratio
}

// maxMemoryLimitRatio keeps a limit within what a quantity can say.
const maxMemoryLimitRatio = 1 << 10
