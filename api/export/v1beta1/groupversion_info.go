// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package v1beta1 contains the export.kubevirt.io/v1beta1 API, which is deprecated, served for older clients and not
// stored. Its fields are those of v1; package api/snapshot/v1alpha1 defines how the two versions share types.
// +kubebuilder:object:generate=true
// +groupName=export.kubevirt.io
package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/vireo-project/vireo/api/export"
)

var (
	// GroupVersion is the group and version of the kinds in this package.
	GroupVersion = schema.GroupVersion{Group: export.GroupName, Version: "v1beta1"}

	// SchemeGroupVersion is GroupVersion under the name that client libraries expect.
	SchemeGroupVersion = GroupVersion

	// SchemeBuilder collects the functions that add this package's kinds to a scheme.
	SchemeBuilder = runtime.NewSchemeBuilder(addKnownTypes)

	// AddToScheme adds this package's kinds to a scheme.
	AddToScheme = SchemeBuilder.AddToScheme
)

func addKnownTypes(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion,
		&VirtualMachineExport{}, &VirtualMachineExportList{},
	)
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
