// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package backup holds what all versions of the API group backup.kubevirt.io share: its name, and the finalizer
// and the event reasons of backups. The values are those of KubeVirt's pkg/storage/cbt.
package backup

// GroupName is the name of the API group.
const GroupName = "backup.kubevirt.io"

// VirtualMachineBackupFinalizer keeps a VirtualMachineBackup until its VM is done with it.
const VirtualMachineBackupFinalizer = "backup.kubevirt.io/vmbackup-protection"

// Reasons of events on a backup.
const (
	// BackupInitiatedEvent: the backup began.
	BackupInitiatedEvent = "VirtualMachineBackupInitiated"
	// BackupAbortingEvent: the backup is being aborted, as it was deleted.
	BackupAbortingEvent = "VirtualMachineBackupAborting"
	// BackupCompletedEvent: the backup is done.
	BackupCompletedEvent = "VirtualMachineBackupCompletedSuccessfully"
	// BackupCompletedWithWarningEvent: the backup is done, and something about it deserves a look.
	BackupCompletedWithWarningEvent = "VirtualMachineBackupCompletedWithWarning"
	// BackupFailedEvent: there is no backup.
	BackupFailedEvent = "VirtualMachineBackupFailed"
)
