// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package migration

// SourceDomain is what libvirt says of the guest at the source.
type SourceDomain uint8

// The states of the source's guest.
const (
	// SourceRunning: its CPUs run, whether it is being copied or not.
	SourceRunning SourceDomain = iota
	// SourceSuspended: libvirt stopped it to switch over. It has all that the guest had, and holds no image: it cannot go on
	// as long as the target's QEMU does.
	SourceSuspended
	// SourceServing: it stopped for a post-copy. The target's guest runs or is about to, and fetches what it lacks. Until it runs
	// libvirt may let the source's go on after all, and afterwards it ends it.
	SourceServing
	// SourceHandedOver: it can never run again. libvirt has ended it as migrated, or a post-copy broke.
	SourceHandedOver
	// SourceEnded: it ended otherwise.
	SourceEnded
)

// SourceView is what the source's agent sees.
type SourceView struct {
	Record Record
	Domain SourceDomain
	// Copying says that this process waits for libvirt to copy.
	Copying bool
	// Orphaned says that libvirt has a migration job that an earlier process began. The last call of that process may still be
	// carried out as long as there is one.
	Orphaned bool
	// Dead says that this process had the target complete the guest, and has seen the end of the source's QEMU since. That is
	// to know that it is handed over, whatever libvirt says, which takes its time to notice.
	Dead bool
	// Prepared says that the target's agent is ready to receive.
	Prepared bool
}

// DecideSource says what the source's agent does next.
func DecideSource(v SourceView) []Action {
	switch {
	case v.Record.Final:
		return nil
	case v.Dead, v.Domain == SourceHandedOver:
		return v.handedOver()
	case v.Domain == SourceEnded:
		return nil
	case v.Domain == SourceServing:
		// It has the memory of the guest at the target, or it goes on by itself.
		return nil
	case v.Record.Owner == Target && (v.Copying || v.Orphaned):
		// libvirt is about to end it as migrated. That is the word that virt-controller needs, whatever it has seen of the record.
		return nil
	case v.Record.Owner == Target:
		return []Action{Destroy}
	case v.Copying && v.Record.Abort:
		return []Action{Cancel}
	case v.Copying:
		return nil
	case v.Orphaned && v.Domain == SourceRunning:
		return []Action{Cancel}
	case v.Orphaned:
		// The process that began it may have told libvirt that the target has the guest. libvirt forgets the job, and
		// refuses what comes late, when it notices the end of that process.
		return nil
	case v.Domain == SourceSuspended && !v.Record.Failed:
		// It was not handed over, so nobody was told to run it. What the target has, and with it the images' locks, goes first.
		return []Action{GiveUp}
	case v.Domain == SourceSuspended:
		return []Action{Resume}
	default:
		return v.running()
	}
}

func (v SourceView) handedOver() []Action {
	if v.Record.Owner == Target || v.Record.Failed {
		// A guest that went on after it was copied is not what the target has: a failed migration is not released, come what may.
		return nil
	}
	return []Action{Release, Yield}
}

func (v SourceView) running() []Action {
	switch {
	case v.Record.Failed:
		return nil
	case v.Record.Started, v.Record.Abort:
		// The copy ended and the guest is here.
		return []Action{GiveUp}
	case v.Prepared:
		return []Action{Begin, Copy}
	default:
		return nil
	}
}
