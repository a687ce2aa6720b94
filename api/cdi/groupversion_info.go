// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package cdi contains the kinds of cdi.kubevirt.io/v1beta1 that VMs need: DataVolumes, of which a VM has templates,
// DataSources, which those name, and StorageProfiles, which describe storage classes. They belong to the Containerized
// Data Importer, which installs their CRDs: none are generated from here.
// +kubebuilder:skip
// +kubebuilder:object:generate=true
package cdi

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var (
	// GroupVersion is the group and version of the kinds in this package.
	GroupVersion = schema.GroupVersion{Group: "cdi.kubevirt.io", Version: "v1beta1"}

	// SchemeBuilder collects the functions that add this package's kinds to a scheme.
	SchemeBuilder = runtime.NewSchemeBuilder(addKnownTypes)

	// AddToScheme adds this package's kinds to a scheme.
	AddToScheme = SchemeBuilder.AddToScheme
)

func addKnownTypes(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &DataVolume{}, &DataVolumeList{}, &DataSource{}, &DataSourceList{},
		&StorageProfile{}, &StorageProfileList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
