// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package v1alpha1 contains the backup.kubevirt.io/v1alpha1 API: a VirtualMachineBackup copies the disks of a running
// VM, and a VirtualMachineBackupTracker remembers where the next, incremental backup starts.
// +kubebuilder:object:generate=true
// +groupName=backup.kubevirt.io
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/vireo-project/vireo/api/backup"
)

var (
	// GroupVersion is the group and version of the kinds in this package.
	GroupVersion = schema.GroupVersion{Group: backup.GroupName, Version: "v1alpha1"}

	// SchemeGroupVersion is GroupVersion under the name that client libraries expect.
	SchemeGroupVersion = GroupVersion

	// SchemeBuilder collects the functions that add this package's kinds to a scheme.
	SchemeBuilder = runtime.NewSchemeBuilder(addKnownTypes)

	// AddToScheme adds this package's kinds to a scheme.
	AddToScheme = SchemeBuilder.AddToScheme
)

var (
	// VirtualMachineBackupGroupVersionKind is backup.kubevirt.io/v1alpha1 VirtualMachineBackup.
	VirtualMachineBackupGroupVersionKind = GroupVersion.WithKind("VirtualMachineBackup")
	// VirtualMachineBackupTrackerGroupVersionKind is backup.kubevirt.io/v1alpha1 VirtualMachineBackupTracker.
	VirtualMachineBackupTrackerGroupVersionKind = GroupVersion.WithKind("VirtualMachineBackupTracker")
)

func addKnownTypes(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion,
		&VirtualMachineBackup{}, &VirtualMachineBackupList{},
		&VirtualMachineBackupTracker{}, &VirtualMachineBackupTrackerList{},
	)
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
