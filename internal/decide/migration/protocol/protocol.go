// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package protocol contains the decisions by which a running guest moves from one node to another: what the source's
// agent, the target's agent and virt-controller do next, given what each of them observes. ADR 0023 describes the
// protocol and why it is safe.
//
// The functions are pure. The agents and virt-controller call them with what they read, and the model in this package's
// tests calls the same functions while it enumerates crashes, lost messages, late responses and stale reads. So the
// model checks the protocol that actually runs.
package protocol

// PodFate is what became of a launcher Pod. A Pod that has ended never runs again.
type PodFate uint8

// The fates of a Pod.
const (
	// PodAlive: it may run, even if its node is unreachable.
	PodAlive PodFate = iota
	// PodMigrated: it has ended, and its launcher reported that the guest was migrated.
	PodMigrated
	// PodEnded: it has ended for another reason.
	PodEnded
	// PodGone: it was deleted, and how it ended is unknown.
	PodGone
)

// ControllerView is what virt-controller observes. All of it may be stale.
type ControllerView struct {
	Record    Record
	SourcePod PodFate
	TargetPod PodFate
}

// DecideController returns the next actions of virt-controller for a migration whose target Pod was assigned to an
// agent.
func DecideController(v ControllerView) []Action {
	switch {
	case v.Record.Final:
		return nil
	case v.Record.Owner == Target:
		return v.ownedByTarget()
	case v.SourcePod == PodAlive && v.Record.Failed:
		return v.deleteTarget()
	case v.SourcePod == PodAlive && v.TargetPod != PodAlive && !v.Record.Abort:
		return []Action{RequestAbort}
	case v.SourcePod == PodAlive:
		return nil
	case v.SourcePod == PodMigrated && !v.Record.Failed && v.TargetPod == PodAlive:
		// The source's agent did not record this, perhaps because it failed after the switch.
		return []Action{TransferOwnership}
	case v.TargetPod == PodAlive:
		// The target may lack the guest's last state, so its guest must never run.
		return v.deleteTarget()
	default:
		return []Action{Finish}
	}
}

func (v ControllerView) ownedByTarget() []Action {
	switch {
	case v.SourcePod == PodAlive && v.Record.PostCopy && v.TargetPod == PodAlive:
		// The guest may still need memory from the source, whose Pod finishes by itself after the transfer.
		return nil
	case v.SourcePod == PodAlive:
		return []Action{DeleteSource}
	case v.TargetPod != PodAlive:
		return []Action{Finish}
	default:
		return nil
	}
}

func (v ControllerView) deleteTarget() []Action {
	if v.TargetPod != PodAlive {
		return nil
	}
	return []Action{DeleteTarget}
}

// Side is one of the two nodes of a migration.
type Side uint8

// The sides.
const (
	Source Side = iota
	Target
)

// Record is what the VMI's status contains about a migration. It is only written with the resource version as a
// precondition, and no field ever changes back.
type Record struct {
	// Owner is the side whose node is status.nodeName. Only its agent may let the guest run.
	Owner Side
	// Started reports whether the source has started the transfer (startTimestamp). A migration is started once.
	Started bool
	// Failed reports whether the source keeps the guest (failed).
	Failed bool
	// Abort reports whether an abort was requested (abortRequested).
	Abort bool
	// PostCopy reports whether the target's guest may run with a part of its memory and fetch the rest from the source
	// (mode). It is recorded before a post-copy is requested from libvirt.
	PostCopy bool
	// Final reports whether the VMI has ended, so that its VM may start another one.
	Final bool
}

// Action is an action of virt-controller or one of the agents. Each is idempotent, and may fail: the process that
// decided on it reconciles again.
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
	// DeleteTarget deletes the target's launcher Pod. The decision needs a record that was just read from the API server:
	// the source's Pod may have ended and been deleted before a cache shows the guest's new owner. Controller.
	DeleteTarget
	// Finish records the end of the VMI. Controller.
	Finish
)

// SourceDomain is the state of the source's guest in libvirt.
type SourceDomain uint8

// The states of the source's guest.
const (
	// SourceRunning: its CPUs run, or could: it may be paused for a reason other than a migration. A transfer may be in
	// progress.
	SourceRunning SourceDomain = iota
	// SourceSuspended: libvirt has paused it for the switch. It has all of the guest's state but no lock of a disk image,
	// so it cannot continue as long as the target's QEMU has the locks.
	SourceSuspended
	// SourcePostCopy: it is paused for a post-copy. The target's guest runs, or is about to, and fetches its missing
	// memory from here. Until the target's guest runs, libvirt may still resume the source's guest; after that, libvirt
	// ends it.
	SourcePostCopy
	// SourceMigrated: it can never run again. libvirt has ended it as migrated, or a post-copy failed.
	SourceMigrated
	// SourceEnded: it ended for another reason.
	SourceEnded
)

// SourceView is what the source's agent observes.
type SourceView struct {
	Record Record
	Domain SourceDomain
	// Transferring reports whether this process waits for a transfer by libvirt.
	Transferring bool
	// Orphaned reports whether libvirt has a migration job that an earlier process of the agent started. As long as the
	// job exists, libvirt may still carry out the last call of that process.
	Orphaned bool
	// QEMUExited reports whether this process has had the guest completed on the target, and the source's QEMU has exited
	// since. The guest is then migrated, even if libvirt has not detected that yet.
	QEMUExited bool
	// TargetPrepared reports whether the target's agent is ready to receive the guest.
	TargetPrepared bool
}

// DecideSource returns the next actions of the source's agent.
func DecideSource(v SourceView) []Action {
	switch {
	case v.Record.Final:
		return nil
	case v.QEMUExited, v.Domain == SourceMigrated:
		return v.migrated()
	case v.Domain == SourceEnded:
		return nil
	case v.Domain == SourcePostCopy:
		// The target's guest may need memory from the source. If it never runs, libvirt resumes the source's guest.
		return nil
	case v.Record.Owner == Target && (v.Transferring || v.Orphaned):
		// libvirt will soon end the guest as migrated. virt-controller waits until the launcher has reported that, even if
		// its record is stale.
		return nil
	case v.Record.Owner == Target:
		return []Action{Destroy}
	case v.Transferring && v.Record.Abort:
		return []Action{Cancel}
	case v.Transferring:
		return nil
	case v.Orphaned && v.Domain == SourceRunning:
		return []Action{Cancel}
	case v.Orphaned:
		// The process that started the job may have confirmed to libvirt that the target has the guest. When libvirt detects
		// that this process has ended, it drops the job and rejects late calls.
		return nil
	case v.Domain == SourceSuspended && !v.Record.Failed:
		// The guest is not migrated, so the target was never released. Once the failure is recorded, the target's guest is
		// destroyed and its image locks are freed; then the source's guest can be resumed.
		return []Action{RecordFailure}
	case v.Domain == SourceSuspended:
		return []Action{Resume}
	default:
		return v.running()
	}
}

func (v SourceView) migrated() []Action {
	if v.Record.Owner == Target || v.Record.Failed {
		// A guest that has continued on the source after the transfer differs from the target's copy, so a failed migration
		// is never released.
		return nil
	}
	return []Action{Release, TransferOwnership}
}

func (v SourceView) running() []Action {
	switch {
	case v.Record.Failed:
		return nil
	case v.Record.Started, v.Record.Abort:
		// The transfer has ended, and the guest still runs on the source.
		return []Action{RecordFailure}
	case v.TargetPrepared:
		return []Action{Start, Transfer}
	default:
		return nil
	}
}

// TargetDomain is the state of the target's guest in libvirt.
type TargetDomain uint8

// The states of the target's guest.
const (
	// TargetAbsent: there is no guest.
	TargetAbsent TargetDomain = iota
	// TargetReceiving: QEMU receives the guest. libvirt ends it when the connection that prepared it ends.
	TargetReceiving
	// TargetComplete: QEMU has everything that it needs, including the locks of the images, and is paused.
	TargetComplete
	// TargetRunning: its CPUs run.
	TargetRunning
)

// TargetView is what the target's agent observes. Its record may be stale.
type TargetView struct {
	Record Record
	Domain TargetDomain
	// Released reports whether the source's agent has released the guest to this process, so that the source's guest will
	// never run again.
	Released bool
}

// DecideTarget returns the next actions of the target's agent.
func DecideTarget(v TargetView) []Action {
	switch {
	case v.Domain == TargetAbsent:
		return nil
	case v.Record.Owner == Target && v.Domain == TargetComplete:
		return []Action{Run}
	case v.Record.Owner == Target:
		return nil
	case v.Record.Failed, v.Record.Final:
		return []Action{Destroy}
	case v.Domain == TargetRunning:
		return []Action{TakeOwnership}
	case v.Domain == TargetComplete && v.Released:
		return []Action{Run}
	default:
		// The source's guest may still run, so the target waits.
		return nil
	}
}
