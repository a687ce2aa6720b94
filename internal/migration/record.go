// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package migration

// Side is one of the two nodes of a migration.
type Side uint8

// The sides.
const (
	Source Side = iota
	Target
)

// Record is what the VMI's status says about a migration. It changes by compare-and-swap only, and no field ever changes back.
type Record struct {
	// Owner is the side whose node is status.nodeName. Only its agent may let the guest run.
	Owner Side
	// Started says that the source has begun to copy (startTimestamp). A migration is begun once.
	Started bool
	// Failed says that the source keeps the guest (failed).
	Failed bool
	// Abort says that somebody asked for that (abortRequested).
	Abort bool
	// PostCopy says that the target's guest may run with a part of its memory and fetch the rest from the source (mode). It is
	// recorded before libvirt is asked for that.
	PostCopy bool
	// Final says that the VMI has ended: another one of its VM may start.
	Final bool
}

// Action is something that one of the three does. Each can be repeated, and can fail without harm: whoever decided on it looks again.
type Action uint8

// The actions.
const (
	// Begin records the start. Source.
	Begin Action = iota + 1
	// Copy has libvirt copy the guest. The target's guest stays paused when libvirt is done. Source.
	Copy
	// Cancel ends the copying. Source.
	Cancel
	// Resume lets the source's guest go on. It is decided on a record that was read from the API server that moment. Source.
	Resume
	// GiveUp records that the source keeps the guest. Source.
	GiveUp
	// Release tells the target's agent that it may let its guest run. Source.
	Release
	// Yield records that the target owns the guest. Source and controller.
	Yield
	// Destroy ends the guest of a side that must not run it. Source and target.
	Destroy
	// Run lets the target's guest run. Target.
	Run
	// Claim records that the target, whose guest runs, owns it. Target.
	Claim
	// RequestAbort records that the source shall keep the guest, because there is no target any more. Controller.
	RequestAbort
	// DeleteSource deletes the source's launcher Pod. Controller.
	DeleteSource
	// DeleteTarget deletes the target's. It is decided on a record that was read from the API server that moment: the source's
	// Pod, once it has ended, can be gone before a cache knows whose the guest is. Controller.
	DeleteTarget
	// Finish records the end of the VMI. Controller.
	Finish
)
