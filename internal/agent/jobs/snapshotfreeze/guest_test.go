// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package snapshotfreeze

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/decide/snapshot/freeze"
)

var (
	start     = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	deadline  = start.Add(5 * time.Minute)
	errKilled = errors.New("the agent's process has ended")
)

// world is a guest with its domain's metadata, and the agent's clock.
type world struct {
	clock  *clocktesting.FakePassiveClock
	intent *freeze.Intent
	record *freeze.Record
	// recordErr is returned instead of the record until it is written again.
	recordErr error
	reported  freeze.Record
	frozen    bool
	// byUser reports whether there is a user's freeze.
	byUser bool
	// silent, refusal and thawRefusal are how the guest agent fails.
	silent               bool
	refusal, thawRefusal error
	// left is the number of calls after which the process ends, if it is positive. lost reports whether the last call has
	// no effect.
	left int
	lost bool
	// freezes and thaws count what the guest did.
	freezes, thaws int
}

func newWorld() *world {
	return &world{
		clock: clocktesting.NewFakePassiveClock(start), intent: &freeze.Intent{ID: "a", Deadline: deadline},
	}
}

// call runs the effect of a call, unless the process ends before it.
func (w *world) call(effect func() error) error {
	if w.left < 0 {
		return errKilled
	}
	last := w.left == 1
	if w.left > 0 {
		w.left--
	}
	if last {
		w.left = -1
	}
	if last && w.lost {
		return errKilled
	}
	err := effect()
	if last {
		return errKilled
	}
	return err
}

// agent runs the effect of a request to the guest agent.
func (w *world) agent(effect func() error) error {
	return w.call(func() error {
		if w.silent {
			return fmt.Errorf("call: %w", hypervisor.ErrGuestSilent)
		}
		return effect()
	})
}

func (w *world) SnapshotFreeze(context.Context, string) (record *freeze.Record, err error) {
	err = w.call(func() error {
		record = w.record
		return w.recordErr
	})
	return record, err
}

func (w *world) RecordSnapshotFreeze(_ context.Context, _ string, record freeze.Record) error {
	return w.call(func() error {
		w.record, w.recordErr = &record, nil
		return nil
	})
}

func (w *world) Frozen(context.Context, string) (frozen bool, err error) {
	err = w.agent(func() error {
		frozen = w.frozen
		return nil
	})
	return frozen, err
}

func (w *world) FreezeForSnapshot(context.Context, string) error {
	return w.agent(func() error {
		if w.refusal != nil || w.frozen {
			return w.refusal
		}
		w.frozen = true
		w.freezes++
		return nil
	})
}

func (w *world) ThawAfterSnapshot(ctx context.Context, domain string, record freeze.Record) (ended bool, err error) {
	err = w.agent(func() error {
		if w.thawRefusal != nil {
			w.frozen = false
			return w.thawRefusal
		}
		ended = w.frozen
		if w.frozen && !w.byUser {
			w.frozen = false
			w.thaws++
		}
		return nil
	})
	if err != nil || !ended {
		return false, err
	}
	return true, w.RecordSnapshotFreeze(ctx, domain, record)
}

func (w *world) run(t *testing.T) error {
	t.Helper()
	s := &State{VMI: types.NamespacedName{Namespace: "ns", Name: "vm"}, Domain: "ns_vm", Intent: w.intent,
		Reported: w.reported}
	_, err := execute(t.Context(), w.clock, w, s)
	if w.record != nil {
		w.reported = *w.record
	}
	return err
}

func (w *world) mustRun(t *testing.T) {
	t.Helper()
	if err := w.run(t); err != nil {
		t.Fatal(err)
	}
}

// end ends the intent.
func (w *world) end(how freeze.End) {
	ended := *w.intent
	ended.End = how
	w.intent = &ended
}

// expect checks the record and the guest.
func (w *world) expect(t *testing.T, stage freeze.Stage, kept, frozen bool) {
	t.Helper()
	if w.record == nil {
		t.Fatal("there is no record")
	}
	if w.record.Stage != stage || w.record.Kept != kept || w.frozen != frozen {
		t.Errorf("stage %d, kept %t, and the guest is frozen: %t; want %d, %t, %t", w.record.Stage, w.record.Kept, w.frozen,
			stage, kept, frozen)
	}
}
