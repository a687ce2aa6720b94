// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package snapshotfreeze freezes the guests of a node while snapshots of their disks are taken. It carries out what the
// pure package internal/decide/snapshot/freeze decides, with goroutines of its own: a guest may take a minute to
// freeze, and the reconciliation of its VMI must not wait for that.
package snapshotfreeze

import (
	"context"
	"errors"
	"time"

	"k8s.io/utils/clock"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/decide/snapshot/freeze"
)

// Guest is a running guest.
type Guest interface {
	// SnapshotFreeze returns the record in the running domain's metadata, or nil.
	SnapshotFreeze(ctx context.Context, domain string) (*freeze.Record, error)
	// RecordSnapshotFreeze writes it.
	RecordSnapshotFreeze(ctx context.Context, domain string, record freeze.Record) error
	// Frozen reports whether the guest agent reports the guest's file systems as frozen.
	Frozen(ctx context.Context, domain string) (bool, error)
	// FreezeForSnapshot freezes the guest's file systems, unless they are frozen.
	FreezeForSnapshot(ctx context.Context, domain string) error
	// ThawAfterSnapshot thaws them, unless they are frozen on a user's request, too. If the guest agent reports that they
	// were frozen until then, it writes the record and returns true.
	ThawAfterSnapshot(ctx context.Context, domain string, record freeze.Record) (bool, error)
}

// maxActions is how many actions a run may take: two freezes from the request to the thaw, and one more of each.
const maxActions = 12

// Problems of a record for which no error gives the reason.
const (
	problemNotInTime = "the guest was not frozen before the freeze was canceled or its time was up"
	problemThawed    = "the guest was thawed before the agent did so: by a user, by a reset, or by itself"
)

var errStaysFrozen = errors.New("the guest agent reports the guest as frozen after a thaw")

// execution is a run of the agent's decisions for a guest.
type execution struct {
	guest  Guest
	domain string
	view   freeze.AgentView
	// changed reports whether the record was written, thawed whether a thaw was requested.
	changed, thawed bool
}

// execute carries out the agent's decisions, one after the other, and returns the record that it has written, if any.
// It can end anywhere: the next call continues from the domain's metadata and the guest.
func execute(ctx context.Context, clock clock.PassiveClock, guest Guest, s *State) (written *freeze.Record, err error) {
	noted, err := guest.SnapshotFreeze(ctx, s.Domain)
	if err != nil && !errors.Is(err, hypervisor.ErrFreezeRecord) {
		return nil, err
	}
	e := &execution{guest: guest, domain: s.Domain,
		view: freeze.AgentView{Intent: s.Intent, Record: current(noted, err, s)}}
	if err != nil {
		e.view.Problem = problem(err)
	}
	for range maxActions {
		// A guest agent that does not respond is queried again after this run. Until then, the guest is unknown.
		silent := e.observe(ctx)
		if silent != nil && !errors.Is(silent, hypervisor.ErrGuestSilent) {
			return e.written(), silent
		}
		e.view.Now = clock.Now()
		action, next := freeze.DecideAgent(e.view)
		switch action {
		case freeze.Wait:
			return e.written(), silent
		case freeze.Write:
			err = e.write(ctx, explain(next))
		case freeze.Freeze:
			err = e.freeze(ctx)
		case freeze.Thaw:
			err = e.thaw(ctx, explain(next))
		}
		if err != nil {
			return e.written(), err
		}
	}
	return e.written(), nil
}

// written returns the record that was written last, or nil.
func (e *execution) written() *freeze.Record {
	if !e.changed {
		return nil
	}
	return &e.view.Record
}

// observe queries the guest agent, unless the result is known or does not matter.
func (e *execution) observe(ctx context.Context) error {
	v := &e.view
	if v.Record.Ended() || v.Guest != freeze.GuestUnknown {
		return nil
	}
	frozen, err := e.guest.Frozen(ctx, e.domain)
	switch {
	case errors.Is(err, hypervisor.ErrGuestRefused):
		v.Guest, v.Problem = freeze.GuestRefused, problem(err)
	case err != nil:
		return err
	case frozen:
		v.Guest = freeze.GuestFrozen
	default:
		v.Guest = freeze.GuestThawed
	}
	return nil
}

func (e *execution) write(ctx context.Context, next freeze.Record) error {
	if err := e.guest.RecordSnapshotFreeze(ctx, e.domain, next); err != nil {
		return err
	}
	e.changed, e.view.Record = true, next
	if next.Stage != freeze.Frozen {
		// What was observed of the guest belongs to the earlier record.
		e.view.Guest, e.view.Problem = freeze.GuestUnknown, ""
	}
	return nil
}

func (e *execution) freeze(ctx context.Context) error {
	err := e.guest.FreezeForSnapshot(ctx, e.domain)
	switch {
	case err == nil:
		e.view.Guest = freeze.GuestFrozen
	case errors.Is(err, hypervisor.ErrGuestRefused):
		e.view.Guest, e.view.Problem = freeze.GuestRefused, problem(err)
	default:
		// The request may still reach the guest.
		return err
	}
	return nil
}

func (e *execution) thaw(ctx context.Context, next freeze.Record) error {
	if e.thawed {
		return errStaysFrozen
	}
	e.thawed = true
	ended, err := e.guest.ThawAfterSnapshot(ctx, e.domain, next)
	switch {
	case err == nil && ended:
		e.changed, e.view.Record = true, next
		e.view.Guest, e.view.Problem, e.thawed = freeze.GuestUnknown, "", false
	case err == nil:
		e.view.Guest = freeze.GuestThawed
	case errors.Is(err, hypervisor.ErrGuestRefused):
		// Windows reports with this error that it has thawed by itself.
		e.view.Guest, e.view.Problem = freeze.GuestUnknown, problem(err)
	default:
		return err
	}
	return nil
}

// explain adds the reason to a record that has none.
func explain(r freeze.Record) freeze.Record {
	switch {
	case r.Problem != "" || r.Kept:
	case r.Stage == freeze.Failed:
		r.Problem = problemNotInTime
	case r.Stage == freeze.Thawed:
		r.Problem = problemThawed
	}
	return r
}

// current returns the record, given the one in the domain's metadata. If that is missing or unreadable although one was
// written, the launcher has changed it. Then the result is a record that has expired, so that the guest is thawed.
func current(noted *freeze.Record, err error, s *State) freeze.Record {
	reported := s.Reported
	switch {
	case err == nil && noted != nil:
		return *noted
	case err == nil && (reported.ID == "" || reported.Ended()):
		return reported
	}
	lost := freeze.Record{ID: reported.ID, Stage: freeze.Requested, Deadline: time.Unix(0, 0)}
	switch {
	case lost.ID != "":
	case s.Intent != nil:
		lost.ID = s.Intent.ID
	default:
		lost.ID = "unknown"
	}
	return lost
}

func problem(err error) string {
	return hypervisor.CleanLine(err.Error(), hypervisor.MaxFreezeProblem)
}
