// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podspec

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// Owner returns the controller reference of a Pod if it is a VirtualMachineInstance, and nil otherwise; labels do not matter.
// Only virt-controller may set such a reference (policy kubevirt-launcher-pods in config/admission).
func Owner(pod metav1.Object) *metav1.OwnerReference {
	owner := metav1.GetControllerOf(pod)
	if owner == nil || owner.Kind != v1.VirtualMachineInstanceGroupVersionKind.Kind {
		return nil
	}
	// Pods of earlier releases can have other versions of the group.
	group, err := schema.ParseGroupVersion(owner.APIVersion)
	if err != nil || group.Group != v1.GroupVersion.Group {
		return nil
	}
	return owner
}

// IsOf reports whether a Pod belongs to this VMI, and not to another one of the same name. It compares more than the UID,
// because a reference to an object of any kind can have that UID.
func IsOf(pod metav1.Object, vmi *v1.VirtualMachineInstance) bool {
	owner := Owner(pod)
	return owner != nil && pod.GetNamespace() == vmi.Namespace && owner.Name == vmi.Name && owner.UID == vmi.UID
}

// IsOrphanOf reports whether a Pod is a launcher Pod of this VMI that has lost its owner reference, for example by a deletion
// with --cascade=orphan and a restore. The labels prove it, because only virt-controller can set or change them on a Pod.
func IsOrphanOf(pod metav1.Object, vmi *v1.VirtualMachineInstance) bool {
	labels := pod.GetLabels()
	return metav1.GetControllerOf(pod) == nil && pod.GetNamespace() == vmi.Namespace &&
		labels[v1.AppLabel] == launcherpod.AppLabelValue && labels[v1.CreatedByLabel] == string(vmi.UID)
}

// IsTargetOf reports whether a Pod is the target of a migration of a VMI with the same name. IsOf reports whether it is the
// current VMI with that name.
func IsTargetOf(pod metav1.Object, migration *v1.VirtualMachineInstanceMigration) bool {
	owner := Owner(pod)
	return owner != nil && pod.GetNamespace() == migration.Namespace && owner.Name == migration.Spec.VMIName &&
		pod.GetLabels()[v1.MigrationJobLabel] == string(migration.UID) &&
		pod.GetName() == targetPodName(owner.Name, owner.UID, migration.UID)
}
