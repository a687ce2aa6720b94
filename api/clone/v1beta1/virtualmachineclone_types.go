// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1beta1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	snapshotv1beta1 "github.com/vireo-project/vireo/api/snapshot/v1beta1"
)

// VirtualMachineClone makes a new VM of a VM or of a snapshot: a snapshot is taken, if there is none, and restored to
// the new VM.
// +kubebuilder:object:root=true
// +kubebuilder:storageversion
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=virtualmachineclones,singular=virtualmachineclone,scope=Namespaced,shortName=vmclone;vmclones,categories=all
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=.status.phase
// +kubebuilder:printcolumn:name="SourceVirtualMachine",type=string,JSONPath=.spec.source.name
// +kubebuilder:printcolumn:name="TargetVirtualMachine",type=string,JSONPath=.spec.target.name
type VirtualMachineClone struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// spec is what to clone, and how. Set by the user. Changes have an effect until the target is created.
	Spec VirtualMachineCloneSpec `json:"spec"`
	// status is its state. Set by virt-controller.
	Status VirtualMachineCloneStatus `json:"status,omitempty"`
}

// VirtualMachineCloneList is a list of VirtualMachineClones.
// +kubebuilder:object:root=true
type VirtualMachineCloneList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []VirtualMachineClone `json:"items"`
}

// VirtualMachineCloneSpec is what to clone, and how.
type VirtualMachineCloneSpec struct {
	// source is what to clone, in the same namespace: a VirtualMachine (apiGroup kubevirt.io) or a VirtualMachineSnapshot
	// (apiGroup snapshot.kubevirt.io). Required.
	Source *corev1.TypedLocalObjectReference `json:"source"`
	// target is the new VM: apiGroup kubevirt.io, kind VirtualMachine, and its name. Default: a VM with a
	// generated name, which is in status.targetName.
	// +optional
	Target *corev1.TypedLocalObjectReference `json:"target,omitempty"`
	// annotationFilters choose which annotations of the source the target gets. A filter is a key, or the beginning of
	// keys followed by *. After a ! it excludes keys, whatever the other filters are: "*" and "!some/key*" are all but
	// those. Default: all.
	// +optional
	// +listType=atomic
	AnnotationFilters []string `json:"annotationFilters,omitempty"`
	// labelFilters choose which labels of the source the target gets, in the form of annotationFilters. Default: all.
	// +optional
	// +listType=atomic
	LabelFilters []string `json:"labelFilters,omitempty"`
	// template has filters for the labels and annotations of the VM's template.
	// +optional
	Template VirtualMachineCloneTemplateFilters `json:"template,omitempty"`
	// newMacAddresses are the MAC addresses of the target's interfaces, by the interface's name. Default: an interface
	// that is not named gets one at start.
	// +optional
	NewMacAddresses map[string]string `json:"newMacAddresses,omitempty"`
	// newSMBiosSerial is the serial number that the target's firmware reports. Default: a generated one.
	// +optional
	NewSMBiosSerial *string `json:"newSMBiosSerial,omitempty"`
	// patches are JSON patches (RFC 6902), one operation each, that are applied to the target before it is made, such as
	// {"op": "add", "path": "/spec/template/metadata/labels/example", "value": "new-label"}. No default.
	// +optional
	// +listType=atomic
	Patches []string `json:"patches,omitempty"`
	// volumeNamePolicy defines what the target's claims are called: RandomizeNames (the default) generates names,
	// PrefixTargetName puts the target's name before the volume's.
	// +optional
	// +kubebuilder:validation:Enum=RandomizeNames;PrefixTargetName
	VolumeNamePolicy *VolumeNamePolicy `json:"volumeNamePolicy,omitempty"`
}

// VirtualMachineCloneTemplateFilters has filters for the labels and annotations of a VM's template.
type VirtualMachineCloneTemplateFilters struct {
	// annotationFilters choose which annotations of the source's template the target's gets, in the form of
	// spec.annotationFilters. Default: all.
	// +optional
	// +listType=atomic
	AnnotationFilters []string `json:"annotationFilters,omitempty"`
	// labelFilters choose which labels of the source's template the target's gets, in the form of spec.annotationFilters.
	// Default: all.
	// +optional
	// +listType=atomic
	LabelFilters []string `json:"labelFilters,omitempty"`
}

// VolumeNamePolicy defines what the claims of a clone's target are called.
type VolumeNamePolicy string

// Values of VolumeNamePolicy.
const (
	// VolumeNamePolicyRandomizeNames generates names.
	VolumeNamePolicyRandomizeNames VolumeNamePolicy = "RandomizeNames"
	// VolumeNamePolicyPrefixTargetName calls a claim <target>-<volume>.
	VolumeNamePolicyPrefixTargetName VolumeNamePolicy = "PrefixTargetName"
)

// ToVolumeRestorePolicy is the policy of the restore by which the clone is made. What is not known is RandomizeNames,
// which cannot meet a claim that there is.
func (p VolumeNamePolicy) ToVolumeRestorePolicy() snapshotv1beta1.VolumeRestorePolicy {
	if p == VolumeNamePolicyPrefixTargetName {
		return snapshotv1beta1.VolumeRestorePolicyPrefixTargetName
	}
	return snapshotv1beta1.VolumeRestorePolicyRandomizeNames
}

// VirtualMachineCloneStatus is the state of a clone.
type VirtualMachineCloneStatus struct {
	// creationTime is when the clone was completed.
	// +optional
	// +nullable
	CreationTime *metav1.Time `json:"creationTime,omitempty"`
	// phase is SnapshotInProgress, CreatingTargetVM, RestoreInProgress, Succeeded, Failed or Unknown.
	// +optional
	Phase VirtualMachineClonePhase `json:"phase,omitempty"`
	// conditions are Ready and Progressing.
	// +optional
	// +listType=atomic
	Conditions []Condition `json:"conditions,omitempty"`
	// snapshotName names the VirtualMachineSnapshot, while there is one.
	// +optional
	// +nullable
	SnapshotName *string `json:"snapshotName,omitempty"`
	// restoreName names the VirtualMachineRestore, while there is one.
	// +optional
	// +nullable
	RestoreName *string `json:"restoreName,omitempty"`
	// targetName names the new VM.
	// +optional
	// +nullable
	TargetName *string `json:"targetName,omitempty"`
}

// VirtualMachineClonePhase is the state of a clone.
type VirtualMachineClonePhase string

// Values of VirtualMachineClonePhase.
const (
	// PhaseUnset: it has not been processed, or its source does not exist yet.
	PhaseUnset VirtualMachineClonePhase = ""
	// SnapshotInProgress: a snapshot of the source is being taken.
	SnapshotInProgress VirtualMachineClonePhase = "SnapshotInProgress"
	// CreatingTargetVM: the restore is complete, and the target is being created.
	CreatingTargetVM VirtualMachineClonePhase = "CreatingTargetVM"
	// RestoreInProgress: the snapshot is being restored to the target.
	RestoreInProgress VirtualMachineClonePhase = "RestoreInProgress"
	// Succeeded: the target is there. Final.
	Succeeded VirtualMachineClonePhase = "Succeeded"
	// Failed: there will be no target. Final.
	Failed VirtualMachineClonePhase = "Failed"
	// Unknown: its state cannot be determined.
	Unknown VirtualMachineClonePhase = "Unknown"
)

// ConditionType is a type of condition of a clone.
type ConditionType string

// Values of ConditionType.
const (
	// ConditionReady is True once the target is there.
	ConditionReady ConditionType = "Ready"
	// ConditionProgressing is True while the target is being made.
	ConditionProgressing ConditionType = "Progressing"
)

// Condition is one aspect of the state of a clone.
type Condition struct {
	// type is the condition's type: Ready or Progressing.
	Type ConditionType `json:"type"`
	// status is True, False or Unknown.
	Status corev1.ConditionStatus `json:"status"`
	// lastProbeTime is not kept up to date.
	// +optional
	// +nullable
	LastProbeTime metav1.Time `json:"lastProbeTime,omitempty"`
	// lastTransitionTime is when status last changed.
	// +optional
	// +nullable
	LastTransitionTime metav1.Time `json:"lastTransitionTime,omitempty"`
	// reason is the reason in one word, for programs.
	// +optional
	Reason string `json:"reason,omitempty"`
	// message is the explanation and the remedy, for people.
	// +optional
	Message string `json:"message,omitempty"`
}
