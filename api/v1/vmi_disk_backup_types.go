// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
