// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// VirtualMachineBackupTracker remembers, for one VM and one backup tool, the checkpoint from which the next backup
// starts.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=virtualmachinebackuptrackers,singular=virtualmachinebackuptracker,scope=Namespaced,shortName=vmbackuptracker;vmbackuptrackers,categories=all
// +kubebuilder:printcolumn:name="SourceKind",type=string,JSONPath=.spec.source.kind
// +kubebuilder:printcolumn:name="SourceName",type=string,JSONPath=.spec.source.name
// +kubebuilder:printcolumn:name="LatestCheckpoint",type=string,JSONPath=.status.latestCheckpoint.name
// +kubebuilder:printcolumn:name="CheckpointTime",type=date,JSONPath=.status.latestCheckpoint.creationTime
type VirtualMachineBackupTracker struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// spec is the VM. Set by the user; it cannot be changed.
	Spec VirtualMachineBackupTrackerSpec `json:"spec"`
	// status is the checkpoint. Set by virt-controller.
	// +optional
	Status *VirtualMachineBackupTrackerStatus `json:"status,omitempty"`
}

// VirtualMachineBackupTrackerList is a list of VirtualMachineBackupTrackers.
// +kubebuilder:object:root=true
type VirtualMachineBackupTrackerList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []VirtualMachineBackupTracker `json:"items"`
}

// VirtualMachineBackupTrackerSpec is the VM of a tracker.
// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="spec is immutable after creation"
type VirtualMachineBackupTrackerSpec struct {
	// source is the VM: apiGroup kubevirt.io, kind VirtualMachine, and its name. Required.
	// +kubebuilder:validation:XValidation:rule="has(self.apiGroup) && self.apiGroup == 'kubevirt.io'",message="apiGroup must be kubevirt.io"
	// +kubebuilder:validation:XValidation:rule="self.kind == 'VirtualMachine'",message="kind must be VirtualMachine"
	// +kubebuilder:validation:XValidation:rule="self.name != ''",message="name is required"
	Source corev1.TypedLocalObjectReference `json:"source"`
}

// VirtualMachineBackupTrackerStatus is the checkpoint from which the next backup starts.
type VirtualMachineBackupTrackerStatus struct {
	// latestCheckpoint is that of the tracker's last complete backup, of a pull only if all of it was read. Set by
	// virt-controller, which removes it when the VM runs again after it was stopped. Without it the next backup is a full
	// one.
	// +optional
	LatestCheckpoint *BackupCheckpoint `json:"latestCheckpoint,omitempty"`
	// checkpointRedefinitionRequired is never set: checkpoints end with the guest. In KubeVirt, it is true while a guest
	// that was restarted does not know the checkpoint.
	// +optional
	CheckpointRedefinitionRequired *bool `json:"checkpointRedefinitionRequired,omitempty"`
}

// BackupCheckpoint is a point in time since which changed blocks are known.
type BackupCheckpoint struct {
	// name is its name in the guest's domain.
	Name string `json:"name,omitempty"`
	// creationTime is the point in time.
	CreationTime *metav1.Time `json:"creationTime,omitempty"`
	// volumes are the volumes whose changed blocks are known.
	// +optional
	// +listType=atomic
	Volumes []BackupVolumeInfo `json:"volumes,omitempty"`
}
