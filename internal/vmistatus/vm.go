// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmistatus

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// VMOf returns the VM that is the controller of a VMI, or nil if there is none. The VMI of a VM has its name.
func VMOf(vmi *v1.VirtualMachineInstance) *metav1.OwnerReference {
	owner := metav1.GetControllerOf(vmi)
	if owner == nil || owner.Kind != v1.VirtualMachineGroupVersionKind.Kind || owner.Name != vmi.Name {
		return nil
	}
	// VMIs that earlier versions created refer to an earlier version of the API.
	group, err := schema.ParseGroupVersion(owner.APIVersion)
	if err != nil || group.Group != v1.GroupVersion.Group {
		return nil
	}
	return owner
}
