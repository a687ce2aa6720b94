// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package csi contains the parts of the kinds of snapshot.storage.k8s.io/v1 that snapshots and restores of VMs need.
// They belong to Kubernetes' external-snapshotter, which installs their CRDs: none are generated from here.
// +kubebuilder:skip
// +kubebuilder:object:generate=true
package csi

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupName is the name of the API group.
const GroupName = "snapshot.storage.k8s.io"

var (
	// GroupVersion is the group and version of the kinds in this package.
	GroupVersion = schema.GroupVersion{Group: GroupName, Version: "v1"}

	// SchemeBuilder collects the functions that add this package's kinds to a scheme.
	SchemeBuilder = runtime.NewSchemeBuilder(addKnownTypes)

	// AddToScheme adds this package's kinds to a scheme.
	AddToScheme = SchemeBuilder.AddToScheme
)

func addKnownTypes(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion,
		&VolumeSnapshot{}, &VolumeSnapshotList{}, &VolumeSnapshotClass{}, &VolumeSnapshotClassList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
