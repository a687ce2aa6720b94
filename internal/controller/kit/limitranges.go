// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package kit

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// maxLimits is how many limits of a namespace are considered. If there are more, the API server may refuse a Pod, and
// says why.
const maxLimits = 1000

// LimitRanges returns what the LimitRanges of a namespace demand of the CPUs and the memory of Pods and containers, as
// they are on the API server: few Pods need it, so they are not watched.
func LimitRanges(ctx context.Context, live client.Reader, namespace string) ([]corev1.LimitRange, error) {
	var limits []corev1.LimitRangeItem
	err := EachPage(ctx, live, &corev1.LimitRangeList{}, func(page *corev1.LimitRangeList) {
		for i := range page.Items {
			for j := range page.Items[i].Spec.Limits {
				item := &page.Items[i].Spec.Limits[j]
				if len(limits) < maxLimits && (item.Type == corev1.LimitTypePod || item.Type == corev1.LimitTypeContainer) {
					limits = append(limits, corev1.LimitRangeItem{
						Type: item.Type, Min: computing(item.Min), Max: computing(item.Max),
						MaxLimitRequestRatio: computing(item.MaxLimitRequestRatio),
					})
				}
			}
		}
	}, client.InNamespace(namespace))
	switch {
	case err != nil:
		return nil, fmt.Errorf("list the LimitRanges of namespace %s: %w", namespace, err)
	case len(limits) == 0:
		return nil, nil
	default:
		return []corev1.LimitRange{{Spec: corev1.LimitRangeSpec{Limits: limits}}}, nil
	}
}

// computing returns the CPUs and the memory of a list of resources.
func computing(all corev1.ResourceList) corev1.ResourceList {
	var kept corev1.ResourceList
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		if quantity, ok := all[name]; ok {
			if kept == nil {
				kept = corev1.ResourceList{}
			}
			kept[name] = quantity
		}
	}
	return kept
}
