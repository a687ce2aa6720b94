// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package protocol

// Pod is the state of a launcher Pod. A Pod that has ended never runs again.
type Pod uint8

// The states of a Pod.
const (
	// PodAlive: it may run, even if its node is unreachable.
	PodAlive Pod = iota
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
	SourcePod Pod
	TargetPod Pod
}

// DecideController returns the next actions of virt-controller for a migration whose target Pod was assigned to an agent.
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
