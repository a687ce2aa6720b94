// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ChangedBlockTrackingStatus reports whether changed blocks are tracked.
// +k8s:openapi-gen=true
type ChangedBlockTrackingStatus struct {
	// state is the state of the tracking.
	State ChangedBlockTrackingState `json:"state"`
	// backupStatus is the backup that is running or was the last.
	// +nullable
	// +optional
	BackupStatus *VirtualMachineInstanceBackupStatus `json:"backupStatus,omitempty"`
}

// ChangedBlockTrackingState is the state of the tracking of changed blocks.
type ChangedBlockTrackingState string

// Values of ChangedBlockTrackingState.
const (
	// ChangedBlockTrackingUndefined: it was not requested.
	ChangedBlockTrackingUndefined ChangedBlockTrackingState = ""
	// ChangedBlockTrackingPendingRestart: it is enabled at the next start.
	ChangedBlockTrackingPendingRestart ChangedBlockTrackingState = "PendingRestart"
	// ChangedBlockTrackingInitializing: it is being set up.
	ChangedBlockTrackingInitializing ChangedBlockTrackingState = "Initializing"
	// ChangedBlockTrackingEnabled: it is on.
	ChangedBlockTrackingEnabled ChangedBlockTrackingState = "Enabled"
	// ChangedBlockTrackingDisabled: it is off.
	ChangedBlockTrackingDisabled ChangedBlockTrackingState = "Disabled"
	// ChangedBlockTrackingFGDisabled: its feature gate is off.
	ChangedBlockTrackingFGDisabled ChangedBlockTrackingState = "IncrementalBackupFeatureGateDisabled"
)

// VirtualMachineInstanceBackupStatus is a backup of a running guest.
// +k8s:openapi-gen=true
type VirtualMachineInstanceBackupStatus struct {
	// backupName names the VirtualMachineBackup.
	BackupName string `json:"backupName,omitempty"`
	// startTimestamp is when it started.
	StartTimestamp *metav1.Time `json:"startTimestamp,omitempty"`
	// endTimestamp is when it finished.
	EndTimestamp *metav1.Time `json:"endTimestamp,omitempty"`
	// completed is true once it ended.
	Completed bool `json:"completed,omitempty"`
	// failed is true if it ended without a backup.
	Failed bool `json:"failed,omitempty"`
	// backupMsg is why it failed.
	// +optional
	BackupMsg *string `json:"backupMsg,omitempty"`
	// checkpointName is the checkpoint that the next backup starts from.
	// +optional
	CheckpointName *string `json:"checkpointName,omitempty"`
	// volumes are its volumes.
	// +optional
	// +listType=atomic
	Volumes []BackupVolumeInfo `json:"volumes,omitempty"`
	// quiesceStatus reports whether the guest's file systems were frozen for it.
	// +optional
	QuiesceStatus string `json:"quiesceStatus,omitempty"`
}

// BackupVolumeInfo is one volume of a backup.
type BackupVolumeInfo struct {
	// volumeName is the volume's name in the VMI.
	VolumeName string `json:"volumeName"`
	// diskTarget is the device name that the disk had in the guest at the time of the backup.
	DiskTarget string `json:"diskTarget"`
	// dataEndpoint is the address from which the data is pulled.
	DataEndpoint string `json:"dataEndpoint,omitempty"`
	// mapEndpoint is the address from which the map of changed blocks is pulled.
	MapEndpoint string `json:"mapEndpoint,omitempty"`
}
