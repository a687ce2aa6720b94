// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vireo-project/vireo/api/snapshot/v1beta1"
)

// VirtualMachineSnapshot requests a snapshot of a VM and reports its result. Its content is in a
// VirtualMachineSnapshotContent.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=virtualmachinesnapshots,singular=virtualmachinesnapshot,scope=Namespaced,shortName=vmsnapshot;vmsnapshots,categories=all
// +kubebuilder:printcolumn:name="SourceKind",type=string,JSONPath=.spec.source.kind
// +kubebuilder:printcolumn:name="SourceName",type=string,JSONPath=.spec.source.name
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=.status.phase
// +kubebuilder:printcolumn:name="ReadyToUse",type=boolean,JSONPath=.status.readyToUse
// +kubebuilder:printcolumn:name="CreationTime",type=date,JSONPath=.status.creationTime
// +kubebuilder:printcolumn:name="Error",type=string,JSONPath=.status.error.message
type VirtualMachineSnapshot struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// spec defines the source and the options. Set by the user, and not changed afterwards.
	Spec v1beta1.VirtualMachineSnapshotSpec `json:"spec"`
	// status is its result. Set by virt-controller.
	// +optional
	Status *v1beta1.VirtualMachineSnapshotStatus `json:"status,omitempty"`
}

// VirtualMachineSnapshotList is a list of VirtualMachineSnapshots.
// +kubebuilder:object:root=true
type VirtualMachineSnapshotList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []VirtualMachineSnapshot `json:"items"`
}

// VirtualMachineSnapshotContent is the content of a snapshot: the VM as it was, and the snapshots of its volumes. It is
// created by virt-controller for a VirtualMachineSnapshot, or by a backup tool that imports a snapshot.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=virtualmachinesnapshotcontents,singular=virtualmachinesnapshotcontent,scope=Namespaced,shortName=vmsnapshotcontent;vmsnapshotcontents,categories=all
// +kubebuilder:printcolumn:name="ReadyToUse",type=boolean,JSONPath=.status.readyToUse
// +kubebuilder:printcolumn:name="CreationTime",type=date,JSONPath=.status.creationTime
// +kubebuilder:printcolumn:name="Error",type=string,JSONPath=.status.error.message
type VirtualMachineSnapshotContent struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// spec is what was stored. Set by virt-controller.
	Spec v1beta1.VirtualMachineSnapshotContentSpec `json:"spec"`
	// status is the state of the volumes' snapshots. Set by virt-controller.
	// +optional
	Status *v1beta1.VirtualMachineSnapshotContentStatus `json:"status,omitempty"`
}

// VirtualMachineSnapshotContentList is a list of VirtualMachineSnapshotContents.
// +kubebuilder:object:root=true
type VirtualMachineSnapshotContentList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []VirtualMachineSnapshotContent `json:"items"`
}

// VirtualMachineRestore restores a VM from a snapshot, or creates a new VM from it.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=virtualmachinerestores,singular=virtualmachinerestore,scope=Namespaced,shortName=vmrestore;vmrestores,categories=all
// +kubebuilder:printcolumn:name="TargetKind",type=string,JSONPath=.spec.target.kind
// +kubebuilder:printcolumn:name="TargetName",type=string,JSONPath=.spec.target.name
// +kubebuilder:printcolumn:name="Complete",type=boolean,JSONPath=.status.complete
// +kubebuilder:printcolumn:name="RestoreTime",type=date,JSONPath=.status.restoreTime
type VirtualMachineRestore struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// spec defines the snapshot, the target and the options. Set by the user, and not changed afterwards.
	Spec v1beta1.VirtualMachineRestoreSpec `json:"spec"`
	// status is its state. Set by virt-controller.
	// +optional
	Status *v1beta1.VirtualMachineRestoreStatus `json:"status,omitempty"`
}

// VirtualMachineRestoreList is a list of VirtualMachineRestores.
// +kubebuilder:object:root=true
type VirtualMachineRestoreList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []VirtualMachineRestore `json:"items"`
}
