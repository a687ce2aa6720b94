// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podspec

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Fit changes the resources of a container of Vireo's own in a Pod by as little as the LimitRanges of the namespace demand, and reports
// whether it changed any. A user can change those of a guest, and not these.
func Fit(pod *corev1.Pod, container string, ranges []corev1.LimitRange) bool {
	at := slices.IndexFunc(pod.Spec.Containers, func(c corev1.Container) bool { return c.Name == container })
	if at < 0 {
		return false
	}
	types := []corev1.LimitType{corev1.LimitTypeContainer}
	if len(pod.Spec.Containers) == 1 {
		types = append(types, corev1.LimitTypePod)
	}
	resources := &pod.Spec.Containers[at].Resources
	before := resources.DeepCopy()
	fit(*resources, ranges, equality.Semantic.DeepEqual(before.Requests, before.Limits), types...)
	return !equality.Semantic.DeepEqual(before, resources)
}

// fit changes the resources of a container so that they are within the limits of some types, if that is possible.
func fit(resources corev1.ResourceRequirements, ranges []corev1.LimitRange, guaranteed bool, types ...corev1.LimitType) {
	for i := range ranges {
		for j := range ranges[i].Spec.Limits {
			if item := &ranges[i].Spec.Limits[j]; slices.Contains(types, item.Type) {
				fitItem(resources, item)
			}
		}
	}
	for name, limit := range resources.Limits {
		// Every container of a Guaranteed Pod requests its limits, and none may request more.
		if request := resources.Requests[name]; guaranteed || request.Cmp(limit) > 0 {
			resources.Requests[name] = limit
		}
	}
}

func fitItem(resources corev1.ResourceRequirements, item *corev1.LimitRangeItem) {
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		request := resources.Requests[name]
		limit, limited := resources.Limits[name]
		ratio, rated := item.MaxLimitRequestRatio[name]
		if least, ok := item.Min[name]; ok && request.Cmp(least) < 0 {
			request = least
		}
		if most, ok := item.Max[name]; ok && limit.Cmp(most) > 0 {
			limit = most
		}
		if limit.Cmp(request) < 0 {
			limit = request
		}
		if rated && ratio.MilliValue() > 0 {
			// In thousandths, and rounded up: the API server compares the exact ratio.
			least := (limit.MilliValue()*milliPerCPU + ratio.MilliValue() - 1) / ratio.MilliValue()
			if name == corev1.ResourceMemory {
				least = (least + milliPerCPU - 1) / milliPerCPU * milliPerCPU
			}
			if request.MilliValue() < least {
				request = *resource.NewMilliQuantity(least, request.Format)
			}
		}
		resources.Requests[name] = request
		if limited || rated { // A ratio demands a limit.
			resources.Limits[name] = limit
		}
	}
}
