// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package controllersuite

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	backupv1alpha1 "github.com/vireo-project/vireo/api/backup/v1alpha1"
	v1 "github.com/vireo-project/vireo/api/v1"
)

// TrackerOf returns a tracker of a VM.
func TrackerOf(vm *v1.VirtualMachine) *backupv1alpha1.VirtualMachineBackupTracker {
	tracker := &backupv1alpha1.VirtualMachineBackupTracker{ObjectMeta: metav1.ObjectMeta{Namespace: vm.Namespace,
		Name: "t"}}
	tracker.Spec.Source = corev1.TypedLocalObjectReference{APIGroup: ptr.To("kubevirt.io"), Kind: "VirtualMachine",
		Name: vm.Name}
	return tracker
}
