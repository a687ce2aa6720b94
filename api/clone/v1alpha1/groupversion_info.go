// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package v1alpha1 contains the clone.kubevirt.io/v1alpha1 API, which is served for older clients and not stored. It
// has the fields of v1beta1, as it has in KubeVirt's CRD, so that a client can read and write a clone without loss;
// package api/snapshot/v1alpha1 explains why.
// +kubebuilder:object:generate=true
// +groupName=clone.kubevirt.io
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/vireo-project/vireo/api/clone"
)

var (
	// GroupVersion is the group and version of the kinds in this package.
	GroupVersion = schema.GroupVersion{Group: clone.GroupName, Version: "v1alpha1"}

	// SchemeGroupVersion is GroupVersion under the name that client libraries expect.
	SchemeGroupVersion = GroupVersion

	// SchemeBuilder collects the functions that add this package's kinds to a scheme.
	SchemeBuilder = runtime.NewSchemeBuilder(addKnownTypes)

	// AddToScheme adds this package's kinds to a scheme.
	AddToScheme = SchemeBuilder.AddToScheme
)

var (
	// VirtualMachineCloneKind is clone.kubevirt.io/v1alpha1 VirtualMachineClone.
	VirtualMachineCloneKind = GroupVersion.WithKind(clone.Kind)
	// VirtualMachineCloneListKind is clone.kubevirt.io/v1alpha1 VirtualMachineCloneList.
	VirtualMachineCloneListKind = GroupVersion.WithKind(clone.ListKind)
)

func addKnownTypes(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion,
		&VirtualMachineClone{}, &VirtualMachineCloneList{},
	)
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
