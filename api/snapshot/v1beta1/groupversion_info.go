// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package v1beta1 contains the snapshot.kubevirt.io/v1beta1 API: a VirtualMachineSnapshot is a request and its outcome,
// a VirtualMachineSnapshotContent its content, a VirtualMachineRestore restores it. It is the stored version.
// +kubebuilder:object:generate=true
// +groupName=snapshot.kubevirt.io
package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/vireo-project/vireo/api/snapshot"
)

var (
	// GroupVersion is the group and version of the kinds in this package.
	GroupVersion = schema.GroupVersion{Group: snapshot.GroupName, Version: "v1beta1"}

	// SchemeGroupVersion is GroupVersion under the name that client libraries expect.
	SchemeGroupVersion = GroupVersion

	// SchemeBuilder collects the functions that add this package's kinds to a scheme.
	SchemeBuilder = runtime.NewSchemeBuilder(addKnownTypes)

	// AddToScheme adds this package's kinds to a scheme.
	AddToScheme = SchemeBuilder.AddToScheme
)

func addKnownTypes(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion,
		&VirtualMachineSnapshot{}, &VirtualMachineSnapshotList{},
		&VirtualMachineSnapshotContent{}, &VirtualMachineSnapshotContentList{},
		&VirtualMachineRestore{}, &VirtualMachineRestoreList{},
	)
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
