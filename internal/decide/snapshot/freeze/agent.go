// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package freeze

import "time"

// Guest is what the agent knows about the guest's file systems.
type Guest uint8

// What the agent knows.
const (
	// GuestUnknown: the guest agent does not respond.
	GuestUnknown Guest = iota
	// GuestThawed: the guest agent reports that the file systems are not frozen. It processes requests in order, so no
	// earlier request is pending.
	GuestThawed
	// GuestFrozen: the guest agent reports that the file systems are frozen. Windows may have thawed them nevertheless.
	GuestFrozen
	// GuestRefused: the guest agent refused the freeze that this process has just requested.
	GuestRefused
)

// AgentView is what the agent observes.
type AgentView struct {
	// Now is the time by the node's clock.
	Now time.Time
	// Intent is the intent in the VMI's status, or nil. It may be stale: the agent may read an earlier intent, or none.
	Intent *Intent
	// Record is the record in the domain's metadata, which is never stale.
	Record Record
	// Guest is what the guest agent reports.
	Guest Guest
	// Problem explains why the freeze was refused, or that the guest was not frozen any more when this process thawed it.
	Problem string
}

// AgentAction is an action of the agent. Each is idempotent: after an action, and after a restart, the agent decides
// again.
type AgentAction uint8

// The actions of the agent.
const (
	// Wait does nothing until the intent, the guest or the time changes. If the guest is unknown, the agent queries it
	// again.
	Wait AgentAction = iota
	// Write writes the record to the domain's metadata, and then its copy to the VMI's status.
	Write
	// Freeze requests the freeze from the guest.
	Freeze
	// Thaw thaws the guest. If the guest agent responds that the file systems were frozen until then, the agent writes the
	// record that DecideAgent returned with this action, with the time of the response as ThawedAt. It does so even if the
	// intent has changed meanwhile. After any other response, and after a restart, it decides again.
	Thaw
)

// DecideAgent returns the agent's next action, and the record for Write and Thaw. After the record has ended, it
// returns Wait, because the guest may have been frozen on a user's request.
func DecideAgent(v AgentView) (AgentAction, Record) {
	switch {
	case v.Record.Ended():
		return v.idle()
	case v.Record.Stage == Requested:
		return v.requested()
	default:
		return v.frozen()
	}
}

// ending returns how the intent of the record ends, if it does. It is canceled if it cannot be read or its deadline has
// passed.
func (v AgentView) ending() End {
	switch {
	case v.Intent == nil || v.Intent.ID != v.Record.ID:
		return Cancel
	case v.Intent.End == Open && !v.Now.Before(v.Record.Deadline):
		return Cancel
	default:
		return v.Intent.End
	}
}

// idle starts a freeze. The record is written first, so that a frozen guest always has one.
func (v AgentView) idle() (AgentAction, Record) {
	i := v.Intent
	if i == nil || i.ID == v.Record.ID || i.End != Open || !v.Now.Before(i.Deadline) {
		return Wait, v.Record
	}
	return Write, Record{ID: i.ID, Deadline: i.Deadline, Stage: Requested, FrozenAt: v.Now}
}

// requested decides until the guest is known to be frozen. virt-controller relies only on a freeze whose record is
// Frozen.
func (v AgentView) requested() (AgentAction, Record) {
	next, ends := v.Record, v.ending() != Open
	failed := next
	failed.Stage, failed.Problem = Failed, v.Problem
	switch {
	case v.Guest == GuestRefused, v.Guest == GuestThawed && ends:
		return Write, failed
	case ends:
		return Thaw, failed // This includes an unknown guest, which the request may still reach.
	case v.Guest == GuestFrozen:
		next.Stage = Frozen
		return Write, next
	case v.Guest == GuestThawed:
		return Freeze, v.Record
	default:
		return Wait, v.Record
	}
}

func (v AgentView) frozen() (AgentAction, Record) {
	ending, thawed := v.ending(), v.Record
	thawed.Stage, thawed.ThawedAt, thawed.Problem = Thawed, v.Now, v.Problem
	switch {
	case v.Guest == GuestThawed:
		// The guest was reset, or was thawed by a user or by an earlier process of the agent that stopped before it wrote the
		// record.
		return Write, thawed
	case ending == Open:
		return Wait, v.Record
	default:
		thawed.Kept = ending == Release
		return Thaw, thawed
	}
}
