// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package protocol

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
	// Released reports whether the source's agent has released the guest to this process, so that the source's guest will never run again.
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
