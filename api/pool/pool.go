// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package pool contains what all versions of the API group pool.kubevirt.io share: its name, the finalizer of its VMs,
// the reasons of its events and how its selectors match.
package pool

// GroupName is the name of the API group.
const GroupName = "pool.kubevirt.io"

// VirtualMachinePoolKind is the one kind of the group.
const VirtualMachinePoolKind = "VirtualMachinePool"

// VirtualMachinePoolControllerFinalizer of a pool's VM is removed after the disks that are to be kept no longer belong
// to the VM.
const VirtualMachinePoolControllerFinalizer = "pool.kubevirt.io/finalizer"

// Reasons of events on a pool, from KubeVirt's pkg/virt-controller/watch/pool.
const (
	// FailedScaleOutReason: VMs could not be made.
	FailedScaleOutReason = "FailedScaleOut"
	// FailedScaleInReason: VMs could not be deleted.
	FailedScaleInReason = "FailedScaleIn"
	// FailedUpdateReason: VMs could not be updated.
	FailedUpdateReason = "FailedUpdate"
	// SuccessfulUpdateReason: a VM was updated.
	SuccessfulUpdateReason = "SuccessfulUpdate"
	// FailedRevisionPruningReason: a ControllerRevision that is not needed any more could not be deleted.
	FailedRevisionPruningReason = "FailedRevisionPruning"
	// SuccessfulPausedReason: the pool is paused.
	SuccessfulPausedReason = "SuccessfulPaused"
	// SuccessfulResumeReason: the pool is not paused any more.
	SuccessfulResumeReason = "SuccessfulResume"
)
