// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package instancetype

import (
	"k8s.io/utils/ptr"

	cdiv1beta1 "github.com/vireo-project/vireo/api/cdi/v1beta1"
	"github.com/vireo-project/vireo/api/instancetype/v1beta1"
)

// StorageClass returns the storage class that a preference, which may be nil, sets for DataVolumes of a VM, or "".
func StorageClass(preference *v1beta1.VirtualMachinePreferenceSpec) string {
	if preference == nil || preference.Volumes == nil {
		return ""
	}
	return preference.Volumes.PreferredStorageClassName
}

// WithStorageClass returns a copy of the spec of a VM's DataVolume with the storage class of a preference, which may be nil, if the
// spec names none.
func WithStorageClass(spec *cdiv1beta1.DataVolumeSpec, preference *v1beta1.VirtualMachinePreferenceSpec) *cdiv1beta1.DataVolumeSpec {
	spec = spec.DeepCopy()
	class := StorageClass(preference)
	if class == "" {
		return spec
	}
	if spec.PVC != nil {
		fill(&spec.PVC.StorageClassName, ptr.To(class))
	}
	if spec.Storage != nil {
		fill(&spec.Storage.StorageClassName, ptr.To(class))
	}
	return spec
}
