// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package backup contains what all versions of the API group backup.kubevirt.io share: its name, and the finalizer
// and the event reasons of backups. The values are those of KubeVirt's pkg/storage/cbt.
package backup

// GroupName is the name of the API group.
const GroupName = "backup.kubevirt.io"

// VirtualMachineBackupFinalizer keeps a VirtualMachineBackup until its VM no longer needs it.
const VirtualMachineBackupFinalizer = "backup.kubevirt.io/vmbackup-protection"

// Reasons of events on a backup, or on a tracker.
const (
	// BackupInitiatedEvent: the backup started.
	BackupInitiatedEvent = "VirtualMachineBackupInitiated"
	// BackupAbortingEvent: the backup is to end. It was deleted, the time of a pull is over, or a migration does not wait
	// for it. A pull can be complete nevertheless.
	BackupAbortingEvent = "VirtualMachineBackupAborting"
	// BackupCompletedEvent: the backup is complete.
	BackupCompletedEvent = "VirtualMachineBackupCompletedSuccessfully"
	// BackupCompletedWithWarningEvent: the backup is complete, with a warning.
	BackupCompletedWithWarningEvent = "VirtualMachineBackupCompletedWithWarning"
	// BackupFailedEvent: the backup failed.
	BackupFailedEvent = "VirtualMachineBackupFailed"
	// BackupCleanUpPendingEvent: the backup has ended, and its claim cannot be detached yet. KubeVirt has no such event.
	BackupCleanUpPendingEvent = "VirtualMachineBackupCleanUpPending"
	// CheckpointLostEvent: the checkpoint of the tracker has ended, and is no longer in its status.
	CheckpointLostEvent = "CheckpointRedefinitionFailed"
)
