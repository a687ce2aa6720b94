// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// +k8s:openapi-gen=true
type ChangedBlockTrackingStatus struct {
	State ChangedBlockTrackingState `json:"state"`
	// +nullable
	// +optional
	BackupStatus *VirtualMachineInstanceBackupStatus `json:"backupStatus,omitempty"`
}

type ChangedBlockTrackingState string

// Values of ChangedBlockTrackingState.
const (
	ChangedBlockTrackingUndefined      ChangedBlockTrackingState = ""
	ChangedBlockTrackingPendingRestart ChangedBlockTrackingState = "PendingRestart"
	ChangedBlockTrackingInitializing   ChangedBlockTrackingState = "Initializing"
	ChangedBlockTrackingEnabled        ChangedBlockTrackingState = "Enabled"
	ChangedBlockTrackingDisabled       ChangedBlockTrackingState = "Disabled"
	ChangedBlockTrackingFGDisabled     ChangedBlockTrackingState = "IncrementalBackupFeatureGateDisabled"
)

// +k8s:openapi-gen=true
type VirtualMachineInstanceBackupStatus struct {
	BackupName     string       `json:"backupName,omitempty"`
	StartTimestamp *metav1.Time `json:"startTimestamp,omitempty"`
	EndTimestamp   *metav1.Time `json:"endTimestamp,omitempty"`
	Completed      bool         `json:"completed,omitempty"`
	Failed         bool         `json:"failed,omitempty"`
	// +optional
	BackupMsg *string `json:"backupMsg,omitempty"`
	// +optional
	CheckpointName *string `json:"checkpointName,omitempty"`
	// +optional
	// +listType=atomic
	Volumes []BackupVolumeInfo `json:"volumes,omitempty"`
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
