// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package v1alpha1 contains the migrations.kubevirt.io/v1alpha1 API: a MigrationPolicy changes how the VMs that it
// selects migrate.
// +kubebuilder:object:generate=true
// +groupName=migrations.kubevirt.io
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/vireo-project/vireo/api/migrations"
)

var (
	// GroupVersion is the group and version of the kinds in this package.
	GroupVersion = schema.GroupVersion{Group: migrations.GroupName, Version: "v1alpha1"}

	// SchemeGroupVersion is GroupVersion under the name that client libraries expect.
	SchemeGroupVersion = GroupVersion

	// SchemeBuilder collects the functions that add this package's kinds to a scheme.
	SchemeBuilder = runtime.NewSchemeBuilder(addKnownTypes)

	// AddToScheme adds this package's kinds to a scheme.
	AddToScheme = SchemeBuilder.AddToScheme
)

var (
	// MigrationPolicyKind is migrations.kubevirt.io/v1alpha1 MigrationPolicy.
	MigrationPolicyKind = GroupVersion.WithKind("MigrationPolicy")
	// MigrationPolicyListKind is migrations.kubevirt.io/v1alpha1 MigrationPolicyList.
	MigrationPolicyListKind = GroupVersion.WithKind("MigrationPolicyList")
)

func addKnownTypes(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion,
		&MigrationPolicy{}, &MigrationPolicyList{},
	)
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
