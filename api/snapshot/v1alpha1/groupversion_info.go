// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package v1alpha1 contains the snapshot.kubevirt.io/v1alpha1 API, which is served for older clients and not stored.
//
// A CRD whose versions have no conversion between them keeps what the schema of the version in use knows and drops the
// rest. So that a client of v1alpha1 can read and write an object without loss, the version has the fields of v1beta1,
// as it has in KubeVirt's CRDs, and its kinds are made of the types of v1beta1. The kinds themselves are types of their
// own: a scheme distinguishes the versions by them.
// +kubebuilder:object:generate=true
// +groupName=snapshot.kubevirt.io
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/vireo-project/vireo/api/snapshot"
)

var (
	// GroupVersion is the group and version of the kinds in this package.
	GroupVersion = schema.GroupVersion{Group: snapshot.GroupName, Version: "v1alpha1"}

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
