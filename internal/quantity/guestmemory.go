// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package quantity

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// GuestMemory returns the memory of a guest: what the VMI sets, or else its resources, or one huge page. It returns nil if nothing
// gives it.
func GuestMemory(domain *v1.DomainSpec) *resource.Quantity {
	if domain.Memory != nil && domain.Memory.Guest != nil {
		return domain.Memory.Guest
	}
	for _, list := range []corev1.ResourceList{domain.Resources.Requests, domain.Resources.Limits} {
		if q := list.Memory(); !q.IsZero() {
			return new(q.DeepCopy())
		}
	}
	if domain.Memory == nil || domain.Memory.Hugepages == nil {
		return nil
	}
	if q, err := Parse(domain.Memory.Hugepages.PageSize); err == nil && !q.IsZero() { // Validation reports an invalid one.
		return &q
	}
	return nil
}
