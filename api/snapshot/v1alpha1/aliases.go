// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1alpha1

import (
	"github.com/vireo-project/vireo/api/snapshot/v1beta1"
)

// The parts of the kinds are those of v1beta1, under the names that clients of this version use.
type (
	// VirtualMachineSnapshotSpec is that of v1beta1.
	VirtualMachineSnapshotSpec = v1beta1.VirtualMachineSnapshotSpec
	// VirtualMachineSnapshotStatus is that of v1beta1.
	VirtualMachineSnapshotStatus = v1beta1.VirtualMachineSnapshotStatus
	// VirtualMachineSnapshotPhase is that of v1beta1.
	VirtualMachineSnapshotPhase = v1beta1.VirtualMachineSnapshotPhase
	// DeletionPolicy is that of v1beta1.
	DeletionPolicy = v1beta1.DeletionPolicy
	// Indication is that of v1beta1.
	Indication = v1beta1.Indication
	// SourceIndication is that of v1beta1.
	SourceIndication = v1beta1.SourceIndication
	// SnapshotVolumesLists is that of v1beta1.
	SnapshotVolumesLists = v1beta1.SnapshotVolumesLists
	// VirtualMachineSnapshotContentSpec is that of v1beta1.
	VirtualMachineSnapshotContentSpec = v1beta1.VirtualMachineSnapshotContentSpec
	// VirtualMachineSnapshotContentStatus is that of v1beta1.
	VirtualMachineSnapshotContentStatus = v1beta1.VirtualMachineSnapshotContentStatus
	// SourceSpec is that of v1beta1.
	SourceSpec = v1beta1.SourceSpec
	// VirtualMachine is that of v1beta1.
	VirtualMachine = v1beta1.VirtualMachine
	// VolumeBackup is that of v1beta1.
	VolumeBackup = v1beta1.VolumeBackup
	// PersistentVolumeClaim is that of v1beta1.
	PersistentVolumeClaim = v1beta1.PersistentVolumeClaim
	// VolumeSnapshotStatus is that of v1beta1.
	VolumeSnapshotStatus = v1beta1.VolumeSnapshotStatus
	// VirtualMachineRestoreSpec is that of v1beta1.
	VirtualMachineRestoreSpec = v1beta1.VirtualMachineRestoreSpec
	// VirtualMachineRestoreStatus is that of v1beta1.
	VirtualMachineRestoreStatus = v1beta1.VirtualMachineRestoreStatus
	// VolumeRestore is that of v1beta1.
	VolumeRestore = v1beta1.VolumeRestore
	// ConditionType is that of v1beta1.
	ConditionType = v1beta1.ConditionType
	// Condition is that of v1beta1.
	Condition = v1beta1.Condition
	// Error is that of v1beta1.
	Error = v1beta1.Error
)

// The constants are those of v1beta1.
const (
	DefaultFailureDeadline = v1beta1.DefaultFailureDeadline

	VirtualMachineSnapshotContentDelete = v1beta1.VirtualMachineSnapshotContentDelete
	VirtualMachineSnapshotContentRetain = v1beta1.VirtualMachineSnapshotContentRetain

	VMSnapshotOnlineSnapshotIndication  = v1beta1.VMSnapshotOnlineSnapshotIndication
	VMSnapshotNoGuestAgentIndication    = v1beta1.VMSnapshotNoGuestAgentIndication
	VMSnapshotGuestAgentIndication      = v1beta1.VMSnapshotGuestAgentIndication
	VMSnapshotQuiesceTimeoutIndication  = v1beta1.VMSnapshotQuiesceTimeoutIndication
	VMSnapshotPausedIndication          = v1beta1.VMSnapshotPausedIndication
	VMSnapshotPartialSnapshotIndication = v1beta1.VMSnapshotPartialSnapshotIndication

	PhaseUnset = v1beta1.PhaseUnset
	InProgress = v1beta1.InProgress
	Succeeded  = v1beta1.Succeeded
	Failed     = v1beta1.Failed
	Deleting   = v1beta1.Deleting
	Unknown    = v1beta1.Unknown

	ConditionReady       = v1beta1.ConditionReady
	ConditionProgressing = v1beta1.ConditionProgressing
	ConditionFailure     = v1beta1.ConditionFailure
)
