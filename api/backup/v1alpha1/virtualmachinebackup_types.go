// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// VirtualMachineBackup copies the disks of a running VM, all of their data or what changed since the last backup.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=virtualmachinebackups,singular=virtualmachinebackup,scope=Namespaced,shortName=vmbackup;vmbackups,categories=all
// +kubebuilder:printcolumn:name="SourceKind",type=string,JSONPath=.spec.source.kind
// +kubebuilder:printcolumn:name="SourceName",type=string,JSONPath=.spec.source.name
// +kubebuilder:printcolumn:name="Type",type=string,JSONPath=.status.type
// +kubebuilder:printcolumn:name="CheckpointName",type=string,JSONPath=.status.checkpointName
type VirtualMachineBackup struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// spec is what to back up, where to and how. Set by the user; it cannot be changed.
	Spec VirtualMachineBackupSpec `json:"spec"`
	// status is its state. Set by virt-controller.
	// +optional
	Status *VirtualMachineBackupStatus `json:"status,omitempty"`
}

// VirtualMachineBackupList is a list of VirtualMachineBackups.
// +kubebuilder:object:root=true
type VirtualMachineBackupList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []VirtualMachineBackup `json:"items"`
}

// VirtualMachineBackupSpec is what to back up, where to and how.
// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="spec is immutable after creation"
// +kubebuilder:validation:XValidation:rule="has(self.pvcName) && self.pvcName != \"\"",message="pvcName is required"
// +kubebuilder:validation:XValidation:rule="!has(self.mode) || self.mode != 'Pull' || (has(self.tokenSecretRef) && self.tokenSecretRef != \"\")",message="tokenSecretRef is required when mode is Pull"
type VirtualMachineBackupSpec struct {
	// source is what to back up: a VirtualMachine (apiGroup kubevirt.io), all of it, or a VirtualMachineBackupTracker
	// (apiGroup backup.kubevirt.io), its VM from the tracker's latest checkpoint on. Required.
	// +kubebuilder:validation:XValidation:rule="has(self.apiGroup)",message="apiGroup is required"
	// +kubebuilder:validation:XValidation:rule="!has(self.apiGroup) || self.apiGroup == 'kubevirt.io' || self.apiGroup == 'backup.kubevirt.io'",message="apiGroup must be kubevirt.io or backup.kubevirt.io"
	// +kubebuilder:validation:XValidation:rule="!has(self.apiGroup) || (self.apiGroup == 'kubevirt.io' && self.kind == 'VirtualMachine') || (self.apiGroup == 'backup.kubevirt.io' && self.kind == 'VirtualMachineBackupTracker')",message="kind must be VirtualMachine for kubevirt.io or VirtualMachineBackupTracker for backup.kubevirt.io"
	// +kubebuilder:validation:XValidation:rule="self.name != ''",message="name is required"
	Source corev1.TypedLocalObjectReference `json:"source"`
	// mode is Push (the default), which writes the backup to a claim, or Pull, which serves it for download.
	// +optional
	// +kubebuilder:validation:Enum=Push;Pull
	Mode *BackupMode `json:"mode,omitempty"`
	// pvcName names the claim that the backup is written to, or that has room for what the guest overwrites while the
	// backup is pulled. Required.
	// +optional
	PvcName *string `json:"pvcName,omitempty"`
	// skipQuiesce leaves the guest's file systems as they are instead of freezing them when the backup
	// starts. Default: false.
	// +optional
	SkipQuiesce bool `json:"skipQuiesce,omitempty"`
	// forceFullBackup copies all of the data although there is a checkpoint. Default: false.
	// +optional
	ForceFullBackup bool `json:"forceFullBackup,omitempty"`
	// tokenSecretRef names the Secret with the token that opens the download. Required for the mode Pull.
	// +optional
	TokenSecretRef string `json:"tokenSecretRef,omitempty"`
	// ttlDuration is how long a backup can be pulled, from its creation, such as 30m. It is then complete. Default: 2h.
	// +optional
	TTLDuration *metav1.Duration `json:"ttlDuration,omitempty"`
}

// BackupMode is how a backup is transferred.
type BackupMode string

// Values of BackupMode.
const (
	// PushMode writes it to a claim.
	PushMode BackupMode = "Push"
	// PullMode serves it for download.
	PullMode BackupMode = "Pull"
)

// VirtualMachineBackupStatus is the state of a backup.
type VirtualMachineBackupStatus struct {
	// type is Full if the backup has all of the data, and Incremental if it has what changed since the last one.
	// +optional
	Type BackupType `json:"type,omitempty"`
	// conditions are Progressing, Complete, Failed and Quiesced.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// checkpointName is the checkpoint from which the next backup can start.
	// +optional
	CheckpointName *string `json:"checkpointName,omitempty"`
	// endpointCert is the certificate by which the server of a download is checked, as PEM.
	// +optional
	EndpointCert *string `json:"endpointCert,omitempty"`
	// includedVolumes are the volumes that are in the backup.
	// +optional
	// +listType=atomic
	IncludedVolumes []BackupVolumeInfo `json:"includedVolumes,omitempty"`
	// exportUID is the UID of the VirtualMachineExport through which the backup is pulled. With another one the download
	// starts again.
	// +optional
	ExportUID *types.UID `json:"exportUID,omitempty"`
}

// BackupType is how much of the data a backup has.
type BackupType string

// Values of BackupType.
const (
	// Full is all of it.
	Full BackupType = "Full"
	// Incremental is what changed since the last backup.
	Incremental BackupType = "Incremental"
)

// BackupVolumeInfo is one volume of a backup.
type BackupVolumeInfo struct {
	// volumeName is the volume's name in the VM.
	VolumeName string `json:"volumeName"`
	// diskTarget is the device name that the disk had in the guest's domain, such as vda.
	DiskTarget string `json:"diskTarget"`
	// dataEndpoint is the address of the data of a backup that is pulled.
	DataEndpoint string `json:"dataEndpoint,omitempty"`
	// mapEndpoint is the address of the map of the blocks of a backup that is pulled.
	MapEndpoint string `json:"mapEndpoint,omitempty"`
}
