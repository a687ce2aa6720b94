// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmistatus

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// MachineOf is the VM that is the controller of a VMI, or nil if none is. A VM's instance has its name.
func MachineOf(vmi *v1.VirtualMachineInstance) *metav1.OwnerReference {
	owner := metav1.GetControllerOf(vmi)
	if owner == nil || owner.Kind != v1.VirtualMachineGroupVersionKind.Kind || owner.Name != vmi.Name {
		return nil
	}
	// VMIs of earlier versions name those.
	group, err := schema.ParseGroupVersion(owner.APIVersion)
	if err != nil || group.Group != v1.GroupVersion.Group {
		return nil
	}
	return owner
}
