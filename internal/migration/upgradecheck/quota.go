// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package upgradecheck

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// checkQuotas returns the quotas that do not permit a second Pod of the guest. Quotas with scopes are skipped, because the Pod does not
// contain everything on which they depend.
func checkQuotas(w *World, pod *corev1.Pod) []Problem {
	var problems []Problem
	for i := range w.Quotas {
		quota := &w.Quotas[i]
		if quota.Namespace != pod.Namespace || len(quota.Spec.Scopes) > 0 || quota.Spec.ScopeSelector != nil {
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(quota.Status.Hard)) {
			remaining := quota.Status.Hard[name].DeepCopy()
			remaining.Sub(quota.Status.Used[name])
			if need := needs(pod, name); need.Cmp(remaining) > 0 && !need.IsZero() {
				problems = append(problems, Problem{Reason: ReasonQuota, Message: fmt.Sprintf(
					"ResourceQuota %s leaves %s of %s, and its second Pod requests %s", quota.Name, remaining.String(), name, need.String())})
			}
		}
	}
	return problems
}

// needs returns how much of a quota's resource a Pod uses. Source: Kubernetes pkg/quota/v1/evaluator/core, podUsageHelper.
func needs(pod *corev1.Pod, name corev1.ResourceName) resource.Quantity {
	if name == corev1.ResourcePods || name == "count/pods" {
		return *resource.NewQuantity(1, resource.DecimalSI)
	}
	key, list := string(name), func(c *corev1.Container) corev1.ResourceList { return c.Resources.Requests }
	if rest, limits := strings.CutPrefix(key, "limits."); limits {
		key, list = rest, func(c *corev1.Container) corev1.ResourceList { return c.Resources.Limits }
	} else if rest, requests := strings.CutPrefix(key, corev1.DefaultResourceRequestsPrefix); requests {
		key = rest
	}
	var sum resource.Quantity
	for i := range pod.Spec.Containers {
		sum.Add(list(&pod.Spec.Containers[i])[corev1.ResourceName(key)])
	}
	return sum
}
