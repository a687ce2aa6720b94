// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1beta1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// VirtualMachineSnapshotContent is the content of a snapshot: the VM as it was, and the snapshots of its volumes. It is
// created by virt-controller for a VirtualMachineSnapshot, or by a backup tool that imports a snapshot.
// +kubebuilder:object:root=true
// +kubebuilder:storageversion
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=virtualmachinesnapshotcontents,singular=virtualmachinesnapshotcontent,scope=Namespaced,shortName=vmsnapshotcontent;vmsnapshotcontents,categories=all
// +kubebuilder:printcolumn:name="ReadyToUse",type=boolean,JSONPath=.status.readyToUse
// +kubebuilder:printcolumn:name="CreationTime",type=date,JSONPath=.status.creationTime
// +kubebuilder:printcolumn:name="Error",type=string,JSONPath=.status.error.message
type VirtualMachineSnapshotContent struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// spec is what was stored. Set by virt-controller.
	Spec VirtualMachineSnapshotContentSpec `json:"spec"`
	// status is the state of the volumes' snapshots. Set by virt-controller.
	// +optional
	Status *VirtualMachineSnapshotContentStatus `json:"status,omitempty"`
}

// VirtualMachineSnapshotContentList is a list of VirtualMachineSnapshotContents.
// +kubebuilder:object:root=true
type VirtualMachineSnapshotContentList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []VirtualMachineSnapshotContent `json:"items"`
}

// VirtualMachineSnapshotContentSpec is the content of a snapshot.
type VirtualMachineSnapshotContentSpec struct {
	// virtualMachineSnapshotName names the VirtualMachineSnapshot.
	VirtualMachineSnapshotName *string `json:"virtualMachineSnapshotName,omitempty"`
	// source is the VM as it was. Required.
	Source SourceSpec `json:"source"`
	// volumeBackups are the volumes that are in the snapshot.
	// +optional
	// +listType=atomic
	VolumeBackups []VolumeBackup `json:"volumeBackups,omitempty"`
}

// SourceSpec is the object of which a snapshot was taken. One member is set.
type SourceSpec struct {
	// virtualMachine is the VM.
	// +optional
	VirtualMachine *VirtualMachine `json:"virtualMachine,omitempty"`
}

// VirtualMachine is a copy of a VM.
type VirtualMachine struct {
	// metadata is that of the VM.
	// +kubebuilder:pruning:PreserveUnknownFields
	// +nullable
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// spec is the spec that the VM ran with, or had if it did not run.
	Spec v1.VirtualMachineSpec `json:"spec,omitempty"`
	// status is left empty.
	Status v1.VirtualMachineStatus `json:"status,omitempty"`
}

// VolumeBackup is one volume of a snapshot.
type VolumeBackup struct {
	// volumeName is the volume's name in the VM.
	VolumeName string `json:"volumeName"`
	// persistentVolumeClaim is a copy of the claim, from which a restore makes a new one.
	PersistentVolumeClaim PersistentVolumeClaim `json:"persistentVolumeClaim"`
	// volumeSnapshotName names the VolumeSnapshot with the data.
	// +optional
	VolumeSnapshotName *string `json:"volumeSnapshotName,omitempty"`
}

// PersistentVolumeClaim is a copy of a claim.
type PersistentVolumeClaim struct {
	// metadata is that of the claim.
	// +kubebuilder:pruning:PreserveUnknownFields
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// spec is that of the claim.
	// +optional
	Spec corev1.PersistentVolumeClaimSpec `json:"spec,omitempty"`
}

// VirtualMachineSnapshotContentStatus is the state of the volumes' snapshots.
type VirtualMachineSnapshotContentStatus struct {
	// creationTime is the time of the state that all volumes' snapshots have.
	// +optional
	// +nullable
	CreationTime *metav1.Time `json:"creationTime,omitempty"`
	// readyToUse is true once all volumes' snapshots can be restored.
	// +optional
	ReadyToUse *bool `json:"readyToUse,omitempty"`
	// error is the last error, which may be temporary.
	// +optional
	Error *Error `json:"error,omitempty"`
	// volumeSnapshotStatus is the state of each volume's snapshot.
	// +optional
	// +listType=atomic
	VolumeSnapshotStatus []VolumeSnapshotStatus `json:"volumeSnapshotStatus,omitempty"`
}

// VolumeSnapshotStatus is the state of the snapshot of one volume, as its VolumeSnapshot reports it.
type VolumeSnapshotStatus struct {
	// volumeSnapshotName names the VolumeSnapshot.
	VolumeSnapshotName string `json:"volumeSnapshotName"`
	// creationTime is the time of the state that it has.
	// +optional
	// +nullable
	CreationTime *metav1.Time `json:"creationTime,omitempty"`
	// readyToUse is true once it can be restored.
	// +optional
	ReadyToUse *bool `json:"readyToUse,omitempty"`
	// error is the last error.
	// +optional
	Error *Error `json:"error,omitempty"`
}
