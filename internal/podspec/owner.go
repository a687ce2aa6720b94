// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podspec

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// Owner is the VirtualMachineInstance that a Pod was made for: its controller, if that is one. It returns nil for every other Pod,
// whatever labels it has. Only virt-controller makes a VirtualMachineInstance the controller of a Pod: the policy
// kubevirt-launcher-pods of config/admission refuses it to everybody else.
func Owner(pod metav1.Object) *metav1.OwnerReference {
	owner := metav1.GetControllerOf(pod)
	if owner == nil || owner.Kind != v1.VirtualMachineInstanceGroupVersionKind.Kind {
		return nil
	}
	// Pods of earlier versions name those.
	group, err := schema.ParseGroupVersion(owner.APIVersion)
	if err != nil || group.Group != v1.GroupVersion.Group {
		return nil
	}
	return owner
}

// IsOf says that a Pod was made for this very VMI, and not for another one of its name. The UID alone does not say so: a reference to
// an object of any kind can carry it.
func IsOf(pod metav1.Object, vmi *v1.VirtualMachineInstance) bool {
	owner := Owner(pod)
	return owner != nil && pod.GetNamespace() == vmi.Namespace && owner.Name == vmi.Name && owner.UID == vmi.UID
}

// IsOrphanOf says that a launcher Pod of this VMI has lost its owner, as after a deletion with --cascade=orphan and a restore. The
// labels count because nobody else can set them on a Pod, or change them.
func IsOrphanOf(pod metav1.Object, vmi *v1.VirtualMachineInstance) bool {
	labels := pod.GetLabels()
	return metav1.GetControllerOf(pod) == nil && pod.GetNamespace() == vmi.Namespace &&
		labels[v1.AppLabel] == LauncherAppValue && labels[v1.CreatedByLabel] == string(vmi.UID)
}

// IsTargetOf says that a Pod was made for a migration of a VMI of that name, by all that the Pod itself tells. Whether the VMI is the one
// that has the name now is IsOf's to say.
func IsTargetOf(pod metav1.Object, migration *v1.VirtualMachineInstanceMigration) bool {
	owner := Owner(pod)
	return owner != nil && pod.GetNamespace() == migration.Namespace && owner.Name == migration.Spec.VMIName &&
		pod.GetLabels()[v1.MigrationJobLabel] == string(migration.UID) &&
		pod.GetName() == targetPodName(owner.Name, owner.UID, migration.UID)
}
