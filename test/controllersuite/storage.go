// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package controllersuite

import (
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/vireo-project/vireo/api/cdi"
)

// DataVolumeCondition returns a condition of a DataVolume.
func DataVolumeCondition(kind cdi.DataVolumeConditionType, status corev1.ConditionStatus, reason, message string) cdi.DataVolumeCondition {
	return cdi.DataVolumeCondition{Type: kind, Status: status, Reason: reason, Message: message}
}

// AsDefault makes a storage class the default.
func AsDefault(class *storagev1.StorageClass) {
	class.Annotations = map[string]string{"storageclass.kubernetes.io/is-default-class": "true"}
}
