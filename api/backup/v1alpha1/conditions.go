// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1alpha1

// ConditionType is a type of condition of a backup.
type ConditionType string

// Values of ConditionType.
const (
	// ConditionComplete is True once there is a backup. Final.
	ConditionComplete ConditionType = "Complete"
	// ConditionFailed is True once it is clear that there will be none. Final.
	ConditionFailed ConditionType = "Failed"
	// ConditionProgressing is True from the start of the backup to its end.
	ConditionProgressing ConditionType = "Progressing"
	// ConditionQuiesced is True if the guest's file systems were frozen when the backup started.
	ConditionQuiesced ConditionType = "Quiesced"
)

// Reasons of the conditions of a backup.
const (
	// ReasonInitializing: the backup waits for its VM or its tracker. (Progressing)
	ReasonInitializing = "Initializing"
	// ReasonInitiated: the backup is running. (Progressing)
	ReasonInitiated = "Initiated"
	// ReasonPreparingExport: the server of the download is being set up. (Progressing)
	ReasonPreparingExport = "PreparingExport"
	// ReasonExportInitiated is not used. In KubeVirt, the guest's disks are being offered to the server. (Progressing)
	ReasonExportInitiated = "ExportInitiated"
	// ReasonExportReady: the backup can be downloaded. (Progressing)
	ReasonExportReady = "ExportReady"
	// ReasonAborting: the backup is being aborted. (Progressing)
	ReasonAborting = "Aborting"
	// ReasonCompleted: there is a backup. (Complete, Progressing)
	ReasonCompleted = "Completed"
	// ReasonCompletedWithWarning: there is a backup, and the message has a warning. (Complete, Progressing)
	ReasonCompletedWithWarning = "CompletedWithWarning"
	// ReasonFailed: there is no backup; the message explains why. (Failed, Progressing)
	ReasonFailed = "Failed"
	// ReasonQuiesceSucceeded: the file systems were frozen. (Quiesced)
	ReasonQuiesceSucceeded = "QuiesceSucceeded"
	// ReasonQuiesceFailed: the file systems could not be frozen. (Quiesced)
	ReasonQuiesceFailed = "QuiesceFailed"
	// ReasonQuiesceSkipped: skipQuiesce was set, or the guest has no agent. (Quiesced)
	ReasonQuiesceSkipped = "QuiesceSkipped"
	// ReasonSourceLost: the VM stopped while it was backed up. (Failed, Progressing)
	ReasonSourceLost = "SourceLost"
	// ReasonSourceUnhealthy is not used. In KubeVirt, the VM lost track of the backup. (Failed, Progressing)
	ReasonSourceUnhealthy = "SourceUnhealthy"
	// ReasonDeletedDuringInit is not used: a backup that is deleted before it has started is removed without a final
	// condition. In KubeVirt, it has this one. (Failed, Progressing)
	ReasonDeletedDuringInit = "DeletedDuringInit"
)

// QuiesceStatus is whether the guest's file systems were frozen for a backup, as the VMI's
// status.changedBlockTracking.backupStatus reports it.
type QuiesceStatus string

// Values of QuiesceStatus.
const (
	// QuiesceSucceeded: they were.
	QuiesceSucceeded QuiesceStatus = "Succeeded"
	// QuiesceFailed: they could not be.
	QuiesceFailed QuiesceStatus = "Failed"
	// QuiesceSkipped: they were not to be frozen.
	QuiesceSkipped QuiesceStatus = "Skipped"
)
