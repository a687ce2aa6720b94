// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package freeze

import "time"

// Snapshots describes how many snapshots of the guest's disks have been requested and taken.
type Snapshots uint8

// Values of Snapshots.
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
	// ID identifies the freeze.
	ID string
	// Limit is how long the guest may be frozen.
	Limit time.Duration
	// Intent is nil if there is none.
	Intent *Intent
	// Record is the copy in the VMI's status.
	Record Record
	// Snapshots describes how many snapshots there are.
	Snapshots Snapshots
	// Abandoned reports whether no more snapshots are to be taken: the request was deleted, or is too old.
	Abandoned bool
	// Refused reports whether a snapshot that is missing cannot be requested now, for example because of a quota. That may
	// last, so the guest is not kept frozen for it.
	Refused bool
}

// ControllerAction is an action of virt-controller.
type ControllerAction uint8

// The actions of virt-controller.
const (
	// Await does nothing until something changes, or until the intent's deadline.
	Await ControllerAction = iota
	// WriteIntent writes the intent to the VMI's status, with the resource version that was read as a precondition.
	WriteIntent
	// Take requests the missing snapshots.
	Take
	// Done means that the freeze has ended. This decision needs a VMI that was just read from the API server, because a
	// stale cache may lack an intent that has not ended.
	Done
)

// DecideController returns virt-controller's next action, and the intent for WriteIntent.
func DecideController(v ControllerView) (ControllerAction, *Intent) {
	isOwn := v.Intent != nil && v.Intent.ID == v.ID
	switch {
	case isOwn && v.Intent.End == Open:
		return v.open()
	case isOwn:
		return v.ended()
	case v.Abandoned:
		return Done, nil
	case v.Snapshots == NoSnapshot && v.Record.ID != v.ID && v.isTaken():
		return Await, nil
	case v.Snapshots == NoSnapshot && v.Record.ID != v.ID:
		return WriteIntent, &Intent{ID: v.ID, Deadline: v.Now.Add(v.Limit)}
	default:
		// The VMI was replaced, and with it the intent. Freezing the new guest would not make the snapshots consistent.
		return v.take(Done)
	}
}

// isTaken reports whether another freeze needs the intent and the record, which it loses if its intent is replaced:
// until its owner has read how it ended and clears the intent, or until the deadline. One that is canceled has nothing
// to lose.
func (v ControllerView) isTaken() bool {
	return v.Intent != nil && v.Intent.End != Cancel && v.Now.Before(v.Intent.Deadline)
}

// MayClear reports whether the intent is to be removed, so that other freezes need not wait for its deadline. It is
// valid once DecideController has returned Done and it is stored whether the freeze was consistent: that is not known
// any more afterwards.
func (v ControllerView) MayClear() bool {
	return v.Intent != nil && v.Intent.ID == v.ID && v.Intent.End != Open && (v.Record.ID != v.ID || v.Record.Ended())
}

// open decides while the guest is to be frozen. Snapshots are requested only once the record is Frozen.
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
	case v.Refused:
		return v.end(Cancel)
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

// ended decides after the thaw was requested. It waits for the agent's last record, but only until the deadline: the
// agent may not respond.
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

// Consistent reports whether the guest's file systems were frozen while all snapshots were taken. It is valid once
// DecideController returns Done.
func (v ControllerView) Consistent() bool {
	return v.Intent != nil && v.Intent.ID == v.ID && v.Intent.End == Release && v.Record.ID == v.ID &&
		v.Record.Stage == Thawed && v.Record.Kept
}
