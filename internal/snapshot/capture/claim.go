// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package capture

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/vireo-project/vireo/api/csi"
)

// ClaimSpec returns the spec of a claim that is created from the snapshot of another claim. It is bound to no volume that exists, and
// requests as much storage as the snapshot needs.
func ClaimSpec(of *corev1.PersistentVolumeClaimSpec, taken *csi.VolumeSnapshot) corev1.PersistentVolumeClaimSpec {
	of = of.DeepCopy()
	spec := corev1.PersistentVolumeClaimSpec{
		AccessModes:               of.AccessModes,
		Resources:                 of.Resources,
		StorageClassName:          of.StorageClassName,
		VolumeAttributesClassName: of.VolumeAttributesClassName,
		VolumeMode:                of.VolumeMode,
		DataSource:                &corev1.TypedLocalObjectReference{APIGroup: ptr.To(csi.GroupName), Kind: csi.Kind, Name: taken.Name},
		DataSourceRef:             &corev1.TypedObjectReference{APIGroup: ptr.To(csi.GroupName), Kind: csi.Kind, Name: taken.Name},
	}
	if taken.Status == nil || taken.Status.RestoreSize == nil {
		return spec
	}
	if size, ok := spec.Resources.Requests[corev1.ResourceStorage]; ok && size.Cmp(*taken.Status.RestoreSize) >= 0 {
		return spec
	}
	if spec.Resources.Requests == nil {
		spec.Resources.Requests = corev1.ResourceList{}
	}
	spec.Resources.Requests[corev1.ResourceStorage] = taken.Status.RestoreSize.DeepCopy()
	return spec
}
