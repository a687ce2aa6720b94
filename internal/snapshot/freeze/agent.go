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
	// GuestThawed: the guest agent reports that they are not frozen. It processes requests in order, so no earlier request is
	// pending.
	GuestThawed
	// GuestFrozen: the guest agent reports that they are frozen. Windows may have thawed them nevertheless.
	GuestFrozen
	// GuestRefused: the guest agent refused the freeze that this process has just requested.
	GuestRefused
)

// AgentView is what the agent observes.
type AgentView struct {
	// Now is the time by the node's clock.
	Now time.Time
	// Intent is that in the VMI's status, which may be stale: the agent may read an earlier one, or none. Nil if there is none.
	Intent *Intent
	// Record is that in the domain's metadata, which is never stale.
	Record Record
	// Guest is what the guest agent reports.
	Guest Guest
	// Problem explains a refusal, or that the guest was not frozen any more when this process thawed it.
	Problem string
}

// AgentAction is something that the agent does. Each can be repeated: after it, or after a restart, the agent decides again.
type AgentAction uint8

// The actions of the agent.
const (
	// Wait does nothing until the intent, the guest or the time changes. If the guest is unknown, the agent queries it again.
	Wait AgentAction = iota
	// Write writes the record to the domain's metadata, and then its copy to the VMI's status.
	Write
	// Freeze requests the freeze from the guest.
	Freeze
	// Thaw thaws the guest. If the guest agent responds that the file systems were frozen until then, the agent writes the
	// record that was decided with this action, even if the intent has changed meanwhile, and with the time of the response as
	// ThawedAt. After any other response, and after a restart, it decides again.
	Thaw
)

// DecideAgent returns what the agent does next, and for Write and Thaw the record. After the record has ended it
// does nothing: the guest may have been frozen on a user's request.
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

// ending returns how the intent of the record ends, if it does. An intent that cannot be read, and a deadline, cancel it.
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

// idle starts a freeze. The record is written first: a frozen guest always has one.
func (v AgentView) idle() (AgentAction, Record) {
	i := v.Intent
	if i == nil || i.ID == v.Record.ID || i.End != Open || !v.Now.Before(i.Deadline) {
		return Wait, v.Record
	}
	return Write, Record{ID: i.ID, Deadline: i.Deadline, Stage: Requested, FrozenAt: v.Now}
}

// requested continues until the guest is known to be frozen. virt-controller does not rely on a freeze that was not recorded as
// such.
func (v AgentView) requested() (AgentAction, Record) {
	next, ends := v.Record, v.ending() != Open
	failed := next
	failed.Stage, failed.Problem = Failed, v.Problem
	switch {
	case v.Guest == GuestRefused, v.Guest == GuestThawed && ends:
		return Write, failed
	case ends:
		return Thaw, failed // Also if the guest is unknown: the request may still reach it.
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
		// It was reset, thawed by a user, or by an earlier process of the agent, which did not write that it was frozen until then.
		return Write, thawed
	case ending == Open:
		return Wait, v.Record
	default:
		thawed.Kept = ending == Release
		return Thaw, thawed
	}
}
