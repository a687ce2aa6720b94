// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package freeze

import "time"

// Snapshots is how many snapshots of the guest's disks the storage has taken.
type Snapshots uint8

// How many have been taken.
const (
	// NoSnapshot: none was requested yet.
	NoSnapshot Snapshots = iota
	// SomeSnapshots: at least one was requested.
	SomeSnapshots
	// AllSnapshots: all have been taken.
	AllSnapshots
)

// ControllerView is what virt-controller observes. Intent and Record are those in the VMI's status, and may be stale.
type ControllerView struct {
	// Now is the time by virt-controller's clock.
	Now time.Time
	// ID is that of the freeze.
	ID string
	// Limit is how long the guest may be frozen.
	Limit time.Duration
	// Intent is nil if there is none.
	Intent *Intent
	// Record is the copy in the VMI's status.
	Record Record
	// Snapshots is how many there are.
	Snapshots Snapshots
	// Abandoned reports whether no more snapshots are to be taken: the request was deleted, or is too old.
	Abandoned bool
}

// ControllerAction is something that virt-controller does.
type ControllerAction uint8

// The actions of virt-controller.
const (
	// Await does nothing until something changes, or until the intent's deadline.
	Await ControllerAction = iota
	// WriteIntent writes the intent to the VMI's status by compare-and-swap: with the resource version that was read.
	WriteIntent
	// Take requests the snapshots that are missing.
	Take
	// Done means that the freeze is over. The decision needs a VMI that was just read from the API server: a stale cache may not
	// have an intent that has not ended.
	Done
)

// DecideController returns what virt-controller does next, and for WriteIntent the intent.
func DecideController(v ControllerView) (ControllerAction, *Intent) {
	mine := v.Intent != nil && v.Intent.ID == v.ID
	switch {
	case mine && v.Intent.End == Open:
		return v.open()
	case mine:
		return v.ended()
	case v.Abandoned:
		return Done, nil
	case v.Snapshots == NoSnapshot && v.Record.ID != v.ID && v.Intent != nil && v.Intent.End == Open && v.Now.Before(v.Intent.Deadline):
		return Await, nil // Two snapshots would replace each other's intent without end.
	case v.Snapshots == NoSnapshot && v.Record.ID != v.ID:
		return WriteIntent, &Intent{ID: v.ID, Deadline: v.Now.Add(v.Limit)}
	default:
		// The VMI, and the intent with it, was replaced in between. Freezing the new guest would not make the snapshots consistent.
		return v.take(Done)
	}
}

// open continues while the guest is to be frozen. Snapshots exist only if the record was Frozen before the first one.
func (v ControllerView) open() (ControllerAction, *Intent) {
	reported := None
	if v.Record.ID == v.ID {
		reported = v.Record.Stage
	}
	switch {
	case v.Abandoned, reported == Failed, reported == Thawed:
		return v.end(Cancel)
	case v.Snapshots == AllSnapshots:
		return v.end(Release)
	case !v.Now.Before(v.Intent.Deadline):
		return v.end(Cancel)
	case reported == Frozen:
		return Take, nil
	default:
		return Await, nil
	}
}

func (v ControllerView) end(how End) (ControllerAction, *Intent) {
	next := *v.Intent
	next.End = how
	return WriteIntent, &next
}

// ended continues after the thaw was requested. It waits for the agent's last record, but not for an agent that does not respond.
func (v ControllerView) ended() (ControllerAction, *Intent) {
	last := v.Record.ID == v.ID && (v.Record.Stage == Thawed || v.Record.Stage == Failed)
	switch {
	case v.Abandoned, v.Snapshots == AllSnapshots && (last || !v.Now.Before(v.Intent.Deadline)):
		return Done, nil
	case v.Snapshots == AllSnapshots:
		return Await, nil
	default:
		return Take, nil
	}
}

func (v ControllerView) take(then ControllerAction) (ControllerAction, *Intent) {
	if v.Snapshots == AllSnapshots {
		return then, nil
	}
	return Take, nil
}

// Consistent reports, when virt-controller is Done, whether the guest's file systems were frozen while all snapshots were taken.
func (v ControllerView) Consistent() bool {
	return v.Intent != nil && v.Intent.ID == v.ID && v.Intent.End == Release && v.Record.ID == v.ID && v.Record.Stage == Thawed && v.Record.Kept
}
