// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package controllersuite

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	snapshotv1beta1 "github.com/vireo-project/vireo/api/snapshot/v1beta1"
)

// ContentOf returns the content of a snapshot, by its name.
func ContentOf(of *snapshotv1beta1.VirtualMachineSnapshot) *snapshotv1beta1.VirtualMachineSnapshotContent {
	return &snapshotv1beta1.VirtualMachineSnapshotContent{ObjectMeta: metav1.ObjectMeta{
		Namespace: of.Namespace, Name: "vmsnapshot-content-" + string(of.UID),
	}}
}
