// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package freeze

import "time"

// Intent is what virt-controller wants. It is in the VMI's status, and changes by compare-and-swap only.
type Intent struct {
	// ID identifies the freeze: the UID of the snapshot. A guest is frozen at most once for it.
	ID string
	// Deadline is when the guest must be thawed at the latest.
	Deadline time.Time
	// End is set once and never changes back.
	End End
}

// End is how an intent ends.
type End uint8

// How an intent ends.
const (
	// Open: it has not ended.
	Open End = iota
	// Release: all snapshots have been taken while the guest was frozen, as far as virt-controller knows. The guest is to be
	// thawed, and the agent reports whether it was still frozen.
	Release
	// Cancel: the guest is to be thawed. The snapshots, if there are any, are not consistent.
	Cancel
)

// Record is what the agent has done for an intent. It is in the metadata of the running domain, which last exactly as long as
// the guest, and the VMI's status has a copy for virt-controller.
type Record struct {
	// ID is that of the intent. Empty if there has been none.
	ID string
	// Deadline is that of the intent.
	Deadline time.Time
	// Stage is how far it is.
	Stage Stage
	// Kept reports, once it is Thawed, whether the guest was frozen until it was released.
	Kept bool
	// FrozenAt is when the freeze was requested from the guest, ThawedAt when it was found or made thawed.
	FrozenAt, ThawedAt time.Time
	// Problem explains, for people, why it failed or did not last.
	Problem string
}

// Stage is how far a freeze is. It never goes back.
type Stage uint8

// The stages.
const (
	// None: there has been no freeze.
	None Stage = iota
	// Requested: the guest may be frozen or not.
	Requested
	// Frozen: it was frozen, and may have been thawed since.
	Frozen
	// Thawed: it was frozen, and is not any more.
	Thawed
	// Failed: it was never frozen.
	Failed
)

// Ended reports whether nothing is left to do for the guest.
func (r Record) Ended() bool { return r.Stage == None || r.Stage == Thawed || r.Stage == Failed }

// Lasted returns how long the guest was frozen; zero until it is thawed.
func (r Record) Lasted() time.Duration {
	if r.Stage != Thawed {
		return 0
	}
	return r.ThawedAt.Sub(r.FrozenAt)
}
