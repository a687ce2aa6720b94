// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1beta1

import (
	"testing"

	snapshotv1beta1 "github.com/vireo-project/vireo/api/snapshot/v1beta1"
)

func TestToVolumeRestorePolicy(t *testing.T) {
	for policy, want := range map[VolumeNamePolicy]snapshotv1beta1.VolumeRestorePolicy{
		VolumeNamePolicyRandomizeNames:   snapshotv1beta1.VolumeRestorePolicyRandomizeNames,
		VolumeNamePolicyPrefixTargetName: snapshotv1beta1.VolumeRestorePolicyPrefixTargetName,
		"somethingElse":                  snapshotv1beta1.VolumeRestorePolicyRandomizeNames,
	} {
		if got := policy.ToVolumeRestorePolicy(); got != want {
			t.Errorf("%q: %q, want %q", policy, got, want)
		}
	}
}
