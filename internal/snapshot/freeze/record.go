// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package freeze

import "time"

// Intent is the freeze that virt-controller requests. It is in the VMI's status, and is only written with the resource version as a
// precondition.
type Intent struct {
	// ID identifies the freeze: the UID of the VirtualMachineSnapshot or the VirtualMachineBackup. A guest is frozen at most once for it.
	ID string
	// Deadline is when the guest must be thawed at the latest.
	Deadline time.Time
	// End is set once and never changes after that.
	End End
}

// End is how an intent ends.
type End uint8

// How an intent ends.
const (
	// Open: it has not ended.
	Open End = iota
	// Release: as far as virt-controller knows, all copies were taken, or begun in the case of a backup, while the guest was frozen. The
	// guest is to be thawed, and the agent reports whether it was frozen until then.
	Release
	// Cancel: the guest is to be thawed. The copies, if there are any, are not consistent.
	Cancel
)

// Record is what the agent has done for an intent. It is in the metadata of the running domain, which exist exactly as long as the guest.
// The VMI's status contains a copy for virt-controller.
type Record struct {
	// ID is the intent's ID, or empty if there has been none.
	ID string
	// Deadline is the intent's deadline.
	Deadline time.Time
	// Stage is the stage of the freeze.
	Stage Stage
	// Kept reports whether the guest was frozen until it was released. It is valid in the stage Thawed.
	Kept bool
	// FrozenAt is when the freeze was requested from the guest, and ThawedAt when the guest was thawed, or observed to be.
	FrozenAt, ThawedAt time.Time
	// Problem explains to users why the freeze failed or did not last.
	Problem string
}

// Stage is the stage of a freeze. A freeze never returns to an earlier one.
type Stage uint8

// The stages.
const (
	// None: there has been no freeze.
	None Stage = iota
	// Requested: the guest may or may not be frozen.
	Requested
	// Frozen: it was frozen, and may have been thawed since.
	Frozen
	// Thawed: it was frozen, and is not any more.
	Thawed
	// Failed: it was never frozen.
	Failed
)

// Ended reports whether the agent has nothing more to do for the guest.
func (r Record) Ended() bool { return r.Stage == None || r.Stage == Thawed || r.Stage == Failed }

// Lasted returns for how long the guest was frozen; zero until it is thawed.
func (r Record) Lasted() time.Duration {
	if r.Stage != Thawed {
		return 0
	}
	return r.ThawedAt.Sub(r.FrozenAt)
}
