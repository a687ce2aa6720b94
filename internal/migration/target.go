// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package migration

// TargetDomain is what libvirt says of the guest at the target.
type TargetDomain uint8

// The states of the target's guest.
const (
	// TargetAbsent: there is none.
	TargetAbsent TargetDomain = iota
	// TargetReceiving: QEMU takes what the source sends. libvirt ends it when the connection that asked for it ends.
	TargetReceiving
	// TargetComplete: QEMU has all that it needs, the images too, and is paused.
	TargetComplete
	// TargetRunning: its CPUs run.
	TargetRunning
)

// TargetView is what the target's agent sees. Its record may be old.
type TargetView struct {
	Record Record
	Domain TargetDomain
	// Released says that the source's agent told this process that its guest will never run again.
	Released bool
}

// DecideTarget says what the target's agent does next.
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
		return []Action{Claim}
	case v.Domain == TargetComplete && v.Released:
		return []Action{Run}
	default:
		// Whether the source's guest lives is not known here, and not guessed.
		return nil
	}
}
