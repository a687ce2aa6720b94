// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package migration

// Pod is the state of a launcher Pod. One that has ended never comes back.
type Pod uint8

// The states of a Pod.
const (
	// PodAlive: it may run, though its node may not answer.
	PodAlive Pod = iota
	// PodMigrated: it has ended, and its launcher said that the guest was migrated.
	PodMigrated
	// PodEnded: it has ended otherwise.
	PodEnded
	// PodGone: there is none any more, and nobody knows how it ended.
	PodGone
)

// ControllerView is what virt-controller sees. All of it may be old.
type ControllerView struct {
	Record    Record
	SourcePod Pod
	TargetPod Pod
}

// DecideController says what virt-controller does next about a migration whose target Pod was handed to the agents.
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
		// The source's agent could not say it any more.
		return []Action{Yield}
	case v.TargetPod == PodAlive:
		// Whether the target has the guest's last state is not known. What it has must never run.
		return v.deleteTarget()
	default:
		return []Action{Finish}
	}
}

func (v ControllerView) ownedByTarget() []Action {
	switch {
	case v.SourcePod == PodAlive && v.Record.PostCopy && v.TargetPod == PodAlive:
		// The guest may still need memory from there. The Pod ends by itself when all is copied.
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
