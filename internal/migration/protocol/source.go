// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package protocol

// SourceDomain is the state of the source's guest in libvirt.
type SourceDomain uint8

// The states of the source's guest.
const (
	// SourceRunning: its CPUs run, or could: it may be paused for a reason other than a migration. A transfer may be in progress.
	SourceRunning SourceDomain = iota
	// SourceSuspended: libvirt has paused it for the switch. It has all of the guest's state but no lock of a disk image, so it cannot
	// continue as long as the target's QEMU has the locks.
	SourceSuspended
	// SourcePostCopy: it is paused for a post-copy. The target's guest runs, or is about to, and fetches its missing memory from here.
	// Until the target's guest runs, libvirt may still resume the source's guest; after that, libvirt ends it.
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
	// Orphaned reports whether libvirt has a migration job that an earlier process of the agent started. As long as the job exists, libvirt
	// may still carry out the last call of that process.
	Orphaned bool
	// QEMUExited reports whether this process has had the guest completed on the target, and the source's QEMU has exited since. The guest
	// is then migrated, even if libvirt has not detected that yet.
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
		// libvirt will soon end the guest as migrated. virt-controller waits until the launcher has reported that, even if its record is
		// stale.
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
		// The process that started the job may have confirmed to libvirt that the target has the guest. When libvirt detects that this
		// process has ended, it drops the job and rejects late calls.
		return nil
	case v.Domain == SourceSuspended && !v.Record.Failed:
		// The guest is not migrated, so the target was never released. Once the failure is recorded, the target's guest is destroyed and
		// its image locks are freed; then the source's guest can be resumed.
		return []Action{RecordFailure}
	case v.Domain == SourceSuspended:
		return []Action{Resume}
	default:
		return v.running()
	}
}

func (v SourceView) migrated() []Action {
	if v.Record.Owner == Target || v.Record.Failed {
		// A guest that has continued on the source after the transfer differs from the target's copy, so a failed migration is never
		// released.
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
