// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package csi

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Kind is the kind of a VolumeSnapshot, as the data source of a claim names it.
const Kind = "VolumeSnapshot"

// IsDefaultClassAnnotation is "true" on the VolumeSnapshotClass that is used if a driver has several.
const IsDefaultClassAnnotation = "snapshot.storage.kubernetes.io/is-default-class"

// VolumeSnapshot is a snapshot of the volume of a claim.
// +kubebuilder:object:root=true
type VolumeSnapshot struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// spec defines the source.
	Spec VolumeSnapshotSpec `json:"spec"`
	// status is the state of the snapshot. Set by the snapshot controller.
	// +optional
	Status *VolumeSnapshotStatus `json:"status,omitempty"`
}

// VolumeSnapshotList is a list of VolumeSnapshots.
// +kubebuilder:object:root=true
type VolumeSnapshotList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	// items are the VolumeSnapshots.
	Items []VolumeSnapshot `json:"items"`
}

// VolumeSnapshotSpec defines what a snapshot is taken of.
type VolumeSnapshotSpec struct {
	// source is the claim, or an existing snapshot of the storage.
	Source VolumeSnapshotSource `json:"source"`
	// volumeSnapshotClassName names the VolumeSnapshotClass.
	// +optional
	VolumeSnapshotClassName *string `json:"volumeSnapshotClassName,omitempty"`
}

// VolumeSnapshotSource is the source of a snapshot. One member is set.
type VolumeSnapshotSource struct {
	// persistentVolumeClaimName names the claim, in the same namespace.
	// +optional
	PersistentVolumeClaimName *string `json:"persistentVolumeClaimName,omitempty"`
	// volumeSnapshotContentName names the object of an existing snapshot of the storage.
	// +optional
	VolumeSnapshotContentName *string `json:"volumeSnapshotContentName,omitempty"`
}

// VolumeSnapshotStatus is the state of a snapshot.
type VolumeSnapshotStatus struct {
	// creationTime is when the storage took the snapshot: the state of the volume at that time is in it.
	// +optional
	CreationTime *metav1.Time `json:"creationTime,omitempty"`
	// readyToUse is true once a volume can be made from the snapshot.
	// +optional
	ReadyToUse *bool `json:"readyToUse,omitempty"`
	// restoreSize is the least size of a volume that is made from the snapshot.
	// +optional
	RestoreSize *resource.Quantity `json:"restoreSize,omitempty"`
	// error is the last error, which may be temporary.
	// +optional
	Error *VolumeSnapshotError `json:"error,omitempty"`
}

// VolumeSnapshotError is an error of a snapshot.
type VolumeSnapshotError struct {
	// time is when it occurred.
	// +optional
	Time *metav1.Time `json:"time,omitempty"`
	// message is the error's text.
	// +optional
	Message *string `json:"message,omitempty"`
}

// VolumeSnapshotClass defines how a driver takes snapshots.
// +kubebuilder:object:root=true
type VolumeSnapshotClass struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// driver is the name of the storage driver: the provisioner of its storage classes.
	Driver string `json:"driver"`
}

// VolumeSnapshotClassList is a list of VolumeSnapshotClasses.
// +kubebuilder:object:root=true
type VolumeSnapshotClassList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	// items are the VolumeSnapshotClasses.
	Items []VolumeSnapshotClass `json:"items"`
}
