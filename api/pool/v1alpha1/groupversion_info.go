// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package v1alpha1 contains the pool.kubevirt.io/v1alpha1 API, which is served for older clients and not stored. Its
// fields are those of v1beta1; package api/snapshot/v1alpha1 defines how the two versions share types.
// +kubebuilder:object:generate=true
// +groupName=pool.kubevirt.io
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/vireo-project/vireo/api/pool"
)

var (
	// GroupVersion is the group and version of the kinds in this package.
	GroupVersion = schema.GroupVersion{Group: pool.GroupName, Version: "v1alpha1"}

	// SchemeGroupVersion is GroupVersion under the name that client libraries expect.
	SchemeGroupVersion = GroupVersion

	// SchemeBuilder collects the functions that add this package's kinds to a scheme.
	SchemeBuilder = runtime.NewSchemeBuilder(addKnownTypes)

	// AddToScheme adds this package's kinds to a scheme.
	AddToScheme = SchemeBuilder.AddToScheme
)

// Names from package pool, under which clients of this version know them.
const (
	// VirtualMachinePoolKind is the kind of this package.
	VirtualMachinePoolKind = pool.VirtualMachinePoolKind
	// VirtualMachinePoolControllerFinalizer keeps a VM of a pool until the pool has let go of its state.
	VirtualMachinePoolControllerFinalizer = pool.VirtualMachinePoolControllerFinalizer
)

func addKnownTypes(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion,
		&VirtualMachinePool{}, &VirtualMachinePoolList{},
	)
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
