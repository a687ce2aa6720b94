// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package protocol

// Side is one of the two nodes of a migration.
type Side uint8

// The sides.
const (
	Source Side = iota
	Target
)

// Record is what the VMI's status contains about a migration. It is only written with the resource version as a precondition, and no field
// ever changes back.
type Record struct {
	// Owner is the side whose node is status.nodeName. Only its agent may let the guest run.
	Owner Side
	// Started reports whether the source has started the transfer (startTimestamp). A migration is started once.
	Started bool
	// Failed reports whether the source keeps the guest (failed).
	Failed bool
	// Abort reports whether an abort was requested (abortRequested).
	Abort bool
	// PostCopy reports whether the target's guest may run with a part of its memory and fetch the rest from the source (mode). It is
	// recorded before a post-copy is requested from libvirt.
	PostCopy bool
	// Final reports whether the VMI has ended, so that its VM may start another one.
	Final bool
}

// Action is an action of virt-controller or one of the agents. Each is idempotent, and may fail: the process that decided on it reconciles
// again.
type Action uint8

// The actions.
const (
	// Start records the start. Source.
	Start Action = iota + 1
	// Transfer makes libvirt transfer the guest. The target's guest stays paused after the transfer. Source.
	Transfer
	// Cancel ends the transfer. Source.
	Cancel
	// Resume lets the source's guest continue. The decision needs a record that was just read from the API server. Source.
	Resume
	// RecordFailure records that the source keeps the guest. Source.
	RecordFailure
	// Release calls the target's agent, which may then let its guest run. Source.
	Release
	// TransferOwnership records that the target owns the guest. Source and controller.
	TransferOwnership
	// Destroy destroys the guest of the side that must not run it. Source and target.
	Destroy
	// Run lets the target's guest run. Target.
	Run
	// TakeOwnership records that the target, whose guest runs, owns it. Target.
	TakeOwnership
	// RequestAbort requests an abort of the migration, because the target's Pod no longer runs. Controller.
	RequestAbort
	// DeleteSource deletes the source's launcher Pod. Controller.
	DeleteSource
	// DeleteTarget deletes the target's launcher Pod. The decision needs a record that was just read from the API server: the source's Pod
	// may have ended and been deleted before a cache shows the guest's new owner. Controller.
	DeleteTarget
	// Finish records the end of the VMI. Controller.
	Finish
)
