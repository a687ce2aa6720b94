// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1beta1

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// DefaultFailureDeadline is the time a snapshot may take by default.
const DefaultFailureDeadline = 5 * time.Minute

// VirtualMachineSnapshot requests a snapshot of a VM and reports its result. Its content is in a
// VirtualMachineSnapshotContent.
// +kubebuilder:object:root=true
// +kubebuilder:storageversion
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
	Spec VirtualMachineSnapshotSpec `json:"spec"`
	// status is its result. Set by virt-controller.
	// +optional
	Status *VirtualMachineSnapshotStatus `json:"status,omitempty"`
}

// VirtualMachineSnapshotList is a list of VirtualMachineSnapshots.
// +kubebuilder:object:root=true
type VirtualMachineSnapshotList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []VirtualMachineSnapshot `json:"items"`
}

// VirtualMachineSnapshotSpec defines the snapshot's source and options.
type VirtualMachineSnapshotSpec struct {
	// source is the VM: apiGroup kubevirt.io, kind VirtualMachine, and its name. Required.
	Source corev1.TypedLocalObjectReference `json:"source"`
	// deletionPolicy defines what happens to what was stored when the snapshot is deleted: Delete (the default) or Retain.
	// +optional
	DeletionPolicy *DeletionPolicy `json:"deletionPolicy,omitempty"`
	// failureDeadline is the time that the snapshot may take, such as 10m. It fails after that time. Default:
	// 5m. 0 waits forever.
	// +optional
	FailureDeadline *metav1.Duration `json:"failureDeadline,omitempty"`
}

// DeletionPolicy defines what happens to what was stored when its snapshot is deleted.
type DeletionPolicy string

// Values of DeletionPolicy.
const (
	// VirtualMachineSnapshotContentDelete deletes it.
	VirtualMachineSnapshotContentDelete DeletionPolicy = "Delete"
	// VirtualMachineSnapshotContentRetain leaves it.
	VirtualMachineSnapshotContentRetain DeletionPolicy = "Retain"
)

// VirtualMachineSnapshotStatus is what became of a snapshot.
type VirtualMachineSnapshotStatus struct {
	// sourceUID is the UID of the VM.
	// +optional
	SourceUID *types.UID `json:"sourceUID,omitempty"`
	// virtualMachineSnapshotContentName names the VirtualMachineSnapshotContent.
	// +optional
	VirtualMachineSnapshotContentName *string `json:"virtualMachineSnapshotContentName,omitempty"`
	// creationTime is the time of the state that the snapshot has.
	// +optional
	// +nullable
	CreationTime *metav1.Time `json:"creationTime,omitempty"`
	// phase is InProgress, Succeeded, Failed, Deleting or Unknown.
	// +optional
	Phase VirtualMachineSnapshotPhase `json:"phase,omitempty"`
	// readyToUse is true once the snapshot can be restored.
	// +optional
	ReadyToUse *bool `json:"readyToUse,omitempty"`
	// error is the last error, which may be temporary.
	// +optional
	Error *Error `json:"error,omitempty"`
	// conditions are Ready, Progressing and Failure.
	// +optional
	// +listType=atomic
	Conditions []Condition `json:"conditions,omitempty"`
	// indications are the state of the VM: Online, GuestAgent, NoGuestAgent, QuiesceTimeout, Paused,
	// PartialSnapshot. Deprecated: use sourceIndications, which add a message.
	// +optional
	// +listType=set
	Indications []Indication `json:"indications,omitempty"`
	// sourceIndications are the state of the VM and its meaning for the snapshot. None for a VM that was stopped.
	// +optional
	// +listType=atomic
	SourceIndications []SourceIndication `json:"sourceIndications,omitempty"`
	// snapshotVolumes are the volumes of the VM that are in the snapshot and those that are not.
	// +optional
	SnapshotVolumes *SnapshotVolumesLists `json:"snapshotVolumes,omitempty"`
}

// VirtualMachineSnapshotPhase is the state of a snapshot.
type VirtualMachineSnapshotPhase string

// Values of VirtualMachineSnapshotPhase.
const (
	// PhaseUnset: it has not been processed yet.
	PhaseUnset VirtualMachineSnapshotPhase = ""
	// InProgress: it is being taken.
	InProgress VirtualMachineSnapshotPhase = "InProgress"
	// Succeeded: it was taken. Final.
	Succeeded VirtualMachineSnapshotPhase = "Succeeded"
	// Failed: it was not taken in time. Final.
	Failed VirtualMachineSnapshotPhase = "Failed"
	// Deleting: it was deleted before it was taken.
	Deleting VirtualMachineSnapshotPhase = "Deleting"
	// Unknown: its state cannot be determined.
	Unknown VirtualMachineSnapshotPhase = "Unknown"
)

// Indication is a fact about the state of a VM when the snapshot was taken.
type Indication string

// Values of Indication.
const (
	// VMSnapshotOnlineSnapshotIndication: the guest ran.
	VMSnapshotOnlineSnapshotIndication Indication = "Online"
	// VMSnapshotNoGuestAgentIndication: the guest had no agent that could freeze its file systems. It finds the disks as
	// after a power failure.
	VMSnapshotNoGuestAgentIndication Indication = "NoGuestAgent"
	// VMSnapshotGuestAgentIndication: the guest's agent froze the file systems.
	VMSnapshotGuestAgentIndication Indication = "GuestAgent"
	// VMSnapshotQuiesceTimeoutIndication: the file systems were thawed before the snapshot was taken.
	VMSnapshotQuiesceTimeoutIndication Indication = "QuiesceTimeout"
	// VMSnapshotPausedIndication: the guest was paused.
	VMSnapshotPausedIndication Indication = "Paused"
	// VMSnapshotPartialSnapshotIndication: a volume that could have been in the snapshot is not.
	VMSnapshotPartialSnapshotIndication Indication = "PartialSnapshot"
)

// SourceIndication is an indication with its meaning.
type SourceIndication struct {
	// indication is the indication, such as Online.
	Indication Indication `json:"indication"`
	// message explains what it means for the snapshot.
	Message string `json:"message"`
}

// SnapshotVolumesLists are the names of a VM's volumes, by whether they are in a snapshot.
type SnapshotVolumesLists struct {
	// includedVolumes are in it.
	// +optional
	// +listType=set
	IncludedVolumes []string `json:"includedVolumes,omitempty"`
	// excludedVolumes are not: of a type that has no snapshots, or of a storage class without them. The VM's
	// status.volumeSnapshotStatuses have the reasons.
	// +optional
	// +listType=set
	ExcludedVolumes []string `json:"excludedVolumes,omitempty"`
}
