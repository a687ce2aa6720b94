// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package plan

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/utils/ptr"

	"github.com/vireo-project/vireo/api/backup/v1alpha1"
)

// defaultTTL is how long a backup can be pulled if it does not say that. KubeVirt's.
const defaultTTL = 2 * time.Hour

// IsPull reports whether a backup is pulled.
func IsPull(b *v1alpha1.VirtualMachineBackup) bool {
	return ptr.Deref(b.Spec.Mode, v1alpha1.PushMode) == v1alpha1.PullMode
}

// Expiry returns until when a backup can be pulled.
func Expiry(b *v1alpha1.VirtualMachineBackup) time.Time {
	if b.Spec.TTLDuration != nil {
		return b.CreationTimestamp.Add(b.Spec.TTLDuration.Duration)
	}
	return b.CreationTimestamp.Add(defaultTTL)
}

// Ended reports whether a backup is complete or has failed.
func Ended(b *v1alpha1.VirtualMachineBackup) bool {
	return b.Status != nil && (meta.IsStatusConditionTrue(b.Status.Conditions, string(v1alpha1.ConditionComplete)) ||
		meta.IsStatusConditionTrue(b.Status.Conditions, string(v1alpha1.ConditionFailed)))
}

// PullEnds reports whether a backup is not to be pulled any more, and since when. It ends with its deletion or its time.
func PullEnds(b *v1alpha1.VirtualMachineBackup, now time.Time) (since time.Time, ends bool) {
	expiry := Expiry(b)
	if b.DeletionTimestamp != nil && b.DeletionTimestamp.Time.Before(expiry) {
		return b.DeletionTimestamp.Time, true
	}
	return expiry, !now.Before(expiry)
}
