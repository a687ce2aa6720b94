// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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

// DiskBackup requests that the disks of the running guest be copied to a utility volume, for a VirtualMachineBackup.
// Set by virt-controller. KubeVirt calls the subresource backup instead.
type DiskBackup struct {
	// id identifies the backup: the UID of the VirtualMachineBackup. A guest is backed up at most once for it.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	ID string `json:"id"`
	// utilityVolume names the volume of spec.utilityVolumes that the images are written to.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	UtilityVolume string `json:"utilityVolume"`
	// directory is the directory of the images in the utility volume. It is created.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	Directory string `json:"directory"`
	// filePrefix is how the names of the images begin. The name of the volume and .qcow2 follow.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	FilePrefix string `json:"filePrefix,omitempty"`
	// volumes are the names of the volumes whose disks are copied.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=63
	// +listType=atomic
	Volumes []string `json:"volumes"`
	// checkpoint is the name of a checkpoint to create, so that a later backup can be an incremental one.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Checkpoint string `json:"checkpoint,omitempty"`
	// since is the name of the checkpoint from which the backup is an incremental one, if the guest has the checkpoint.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Since string `json:"since,omitempty"`
	// keptCheckpoints are the checkpoints that backups may still start from. With a checkpoint, all others are deleted.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=253
	// +listType=atomic
	// +optional
	KeptCheckpoints []string `json:"keptCheckpoints,omitempty"`
	// pull means that nothing is copied: QEMU serves the disks as they were at the point in time, until the backup is
	// canceled. The utility volume then has what the guest overwrites meanwhile.
	// +optional
	Pull *DiskBackupPull `json:"pull,omitempty"`
	// canceled is true once the backup is to be aborted. It stays true. A pull ends with it.
	// +optional
	Canceled bool `json:"canceled,omitempty"`
}

// DiskBackupPull is the Pod to which the agent connects so that it can read the disks of a pull. It is empty while
// there is no such Pod. The agent connects to it, and never the reverse. Set by virt-controller.
type DiskBackupPull struct {
	// podIP is the Pod's address.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	PodIP string `json:"podIP,omitempty"`
	// port is the port on which the Pod waits for the agent.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +optional
	Port int32 `json:"port,omitempty"`
	// serverName is the name in the Pod's certificate.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	ServerName string `json:"serverName,omitempty"`
	// podUID is the Pod's UID. With another one, the agent closes its connections and connects again.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	PodUID string `json:"podUID,omitempty"`
}

// DiskBackupRecord is what the agent has done for a DiskBackup. It is a copy of an entry in the domain's metadata. Set
// by the agent.
type DiskBackupRecord struct {
	// id is that of the backup.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	ID string `json:"id"`
	// stage is how far the backup is: Requested, Running, Succeeded or Failed.
	// +kubebuilder:validation:Enum=Requested;Running;Succeeded;Failed
	Stage DiskBackupStage `json:"stage"`
	// startedAt is when the agent started the backup.
	// +optional
	StartedAt *metav1.Time `json:"startedAt,omitempty"`
	// endedAt is when the agent observed that the backup had ended.
	// +optional
	EndedAt *metav1.Time `json:"endedAt,omitempty"`
	// checkpoint is the name of the checkpoint that was created with the backup. Empty if there is none.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Checkpoint string `json:"checkpoint,omitempty"`
	// since is the name of the checkpoint from which the backup is an incremental one. Empty if it is a full one.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Since string `json:"since,omitempty"`
	// fullBecause explains, for people, why the backup is a full one although an incremental one was requested, or why no
	// checkpoint was created.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	FullBecause string `json:"fullBecause,omitempty"`
	// pull is true if QEMU serves the disks instead of copying them.
	// +optional
	Pull bool `json:"pull,omitempty"`
	// canceled is true once the agent ends a pull that was served, because it was canceled. Only then it succeeds. Whether
	// a client has read the disks is not known to the agent.
	// +optional
	Canceled bool `json:"canceled,omitempty"`
	// problem explains, for people, why the backup failed.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Problem string `json:"problem,omitempty"`
}

// DiskBackupStage is how far a backup is.
type DiskBackupStage string

// Values of DiskBackupStage.
const (
	// DiskBackupRequested: the backup may be running or not.
	DiskBackupRequested DiskBackupStage = "Requested"
	// DiskBackupRunning: its point in time has passed, and the disks are being copied, or can be read in a pull.
	DiskBackupRunning DiskBackupStage = "Running"
	// DiskBackupSucceeded: all of the disks have been copied. A pull: they could be read until it was canceled.
	DiskBackupSucceeded DiskBackupStage = "Succeeded"
	// DiskBackupFailed: they have not, and will not be.
	DiskBackupFailed DiskBackupStage = "Failed"
)

// SnapshotFreeze requests that the guest's file systems be frozen while snapshots of its disks are taken, or a backup
// of them begins. Set by virt-controller. KubeVirt calls the subresources freeze and unfreeze instead.
type SnapshotFreeze struct {
	// id identifies the freeze: the UID of the VirtualMachineSnapshot or the VirtualMachineBackup. A guest is frozen at
	// most once for it.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	ID string `json:"id"`
	// deadline is when the guest is thawed at the latest, by the clock of its node.
	Deadline metav1.Time `json:"deadline"`
	// end is how the freeze ends: Release or Cancel. It is empty until then, and does not change afterwards.
	// +kubebuilder:validation:Enum="";Release;Cancel
	// +optional
	End SnapshotFreezeEnd `json:"end,omitempty"`
}

// SnapshotFreezeEnd is how a freeze ends.
type SnapshotFreezeEnd string

// Values of SnapshotFreezeEnd.
const (
	// SnapshotFreezeOpen: the freeze has not ended.
	SnapshotFreezeOpen SnapshotFreezeEnd = ""
	// SnapshotFreezeRelease: all snapshots have been taken, or the backup has begun, and the guest is to be thawed.
	SnapshotFreezeRelease SnapshotFreezeEnd = "Release"
	// SnapshotFreezeCancel: the guest is to be thawed, and the snapshots or the backup are not consistent.
	SnapshotFreezeCancel SnapshotFreezeEnd = "Cancel"
)

// SnapshotFreezeRecord is what the agent has done for the freeze of a snapshot or a backup. It is a copy of an entry in
// the domain's metadata. Set by the agent.
type SnapshotFreezeRecord struct {
	// id is that of the freeze.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	ID string `json:"id"`
	// deadline is that of the freeze.
	Deadline metav1.Time `json:"deadline"`
	// stage is how far the freeze is: Requested, Frozen, Thawed or Failed.
	// +kubebuilder:validation:Enum=Requested;Frozen;Thawed;Failed
	Stage SnapshotFreezeStage `json:"stage"`
	// kept is true if the guest was frozen until the freeze was released. Set with the stage Thawed.
	// +optional
	Kept bool `json:"kept,omitempty"`
	// frozenAt is when the agent started to freeze the guest.
	// +optional
	FrozenAt *metav1.Time `json:"frozenAt,omitempty"`
	// thawedAt is when the agent thawed the guest, or found it thawed.
	// +optional
	ThawedAt *metav1.Time `json:"thawedAt,omitempty"`
	// problem explains, for people, why the freeze failed or did not last.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Problem string `json:"problem,omitempty"`
}

// SnapshotFreezeStage is how far a freeze is.
type SnapshotFreezeStage string

// Values of SnapshotFreezeStage.
const (
	// SnapshotFreezeRequested: the guest may be frozen or not.
	SnapshotFreezeRequested SnapshotFreezeStage = "Requested"
	// SnapshotFreezeFrozen: the guest was frozen, and may have been thawed since.
	SnapshotFreezeFrozen SnapshotFreezeStage = "Frozen"
	// SnapshotFreezeThawed: the guest was frozen, and is not any more.
	SnapshotFreezeThawed SnapshotFreezeStage = "Thawed"
	// SnapshotFreezeFailed: the guest was never frozen.
	SnapshotFreezeFailed SnapshotFreezeStage = "Failed"
)
