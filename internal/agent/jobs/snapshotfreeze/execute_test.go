// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package snapshotfreeze

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/decide/snapshot/freeze"
)

func TestGuestIsFrozenUntilTheRelease(t *testing.T) {
	w := newWorld()
	w.mustRun(t)
	w.expect(t, freeze.Frozen, false, true)
	w.mustRun(t)
	w.expect(t, freeze.Frozen, false, true)
	w.end(freeze.Release)
	w.mustRun(t)
	w.expect(t, freeze.Thawed, true, false)
	w.mustRun(t)
	if w.freezes != 1 || w.thaws != 1 || w.record.Problem != "" {
		t.Errorf("%d freezes, %d thaws, problem %q", w.freezes, w.thaws, w.record.Problem)
	}
}

func TestFreezeThatIsNotKept(t *testing.T) {
	refused := fmt.Errorf("thaw: %w: it could not hold the writes", hypervisor.ErrGuestRefused)
	for name, c := range map[string]struct {
		happens func(*world)
		problem string
	}{
		"canceled":                     {func(w *world) { w.end(freeze.Cancel) }, ""},
		"the intent is gone":           {func(w *world) { w.intent = nil }, ""},
		"another intent":               {func(w *world) { w.intent = &freeze.Intent{ID: "b", Deadline: start} }, ""},
		"the time is up":               {func(w *world) { w.clock.SetTime(deadline) }, ""},
		"thawed by a user":             {func(w *world) { w.frozen = false; w.end(freeze.Release) }, problemThawed},
		"thawed by itself, as Windows": {func(w *world) { w.thawRefusal = refused; w.end(freeze.Release) }, "hold the writes"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			w.mustRun(t)
			c.happens(w)
			w.mustRun(t)
			w.expect(t, freeze.Thawed, false, false)
			if !strings.Contains(w.record.Problem, c.problem) {
				t.Errorf("the problem is %q", w.record.Problem)
			}
		})
	}
}

func TestRefusedFreezeFails(t *testing.T) {
	w := newWorld()
	w.refusal = fmt.Errorf("freeze: %w: it is\nnot allowed%s", hypervisor.ErrGuestRefused, strings.Repeat(" at all", 1000))
	w.mustRun(t)
	w.expect(t, freeze.Failed, false, false)
	if p := w.record.Problem; !strings.Contains(p, "it is not allowed") || len(p) > hypervisor.MaxFreezeProblem {
		t.Errorf("the problem is %q", p)
	}
	w.refusal = nil
	w.mustRun(t)
	w.expect(t, freeze.Failed, false, false)
}

func TestSilentGuestIsThawedInTheEnd(t *testing.T) {
	w := newWorld()
	w.silent = true
	if err := w.run(t); !errors.Is(err, hypervisor.ErrGuestSilent) {
		t.Fatalf("got %v, which causes no other attempt", err)
	}
	w.expect(t, freeze.Requested, false, false)
	w.end(freeze.Cancel)
	// A request that an earlier process sent reaches the guest.
	w.frozen = true
	if err := w.run(t); err == nil {
		t.Fatal("the run ended without a thaw")
	}
	w.expect(t, freeze.Requested, false, true)
	w.silent = false
	w.mustRun(t)
	w.expect(t, freeze.Failed, false, false)
}

func TestGuestThatCannotBeThawed(t *testing.T) {
	w := newWorld()
	w.mustRun(t)
	w.end(freeze.Cancel)
	stuck := &stuckGuest{w}
	if _, err := execute(t.Context(), w.clock, stuck,
		&State{Domain: "ns_vm", Intent: w.intent, Reported: w.reported}); !errors.Is(err, errStaysFrozen) {
		t.Errorf("got %v", err)
	}
	w.expect(t, freeze.Frozen, false, true)
	w.mustRun(t)
	w.expect(t, freeze.Thawed, false, false)
}

// stuckGuest refuses the thaw and stays frozen.
type stuckGuest struct{ *world }

func (g *stuckGuest) ThawAfterSnapshot(context.Context, string, freeze.Record) (bool, error) {
	return false, hypervisor.ErrGuestRefused
}

// A freeze on a user's request counts, and outlasts the snapshot.
func TestUsersFreezeStays(t *testing.T) {
	w := newWorld()
	w.byUser, w.frozen = true, true
	w.mustRun(t)
	w.expect(t, freeze.Frozen, false, true)
	w.end(freeze.Release)
	w.mustRun(t)
	w.expect(t, freeze.Thawed, true, true)
	w.mustRun(t)
	if w.freezes+w.thaws != 0 {
		t.Errorf("the guest was frozen %d and thawed %d times", w.freezes, w.thaws)
	}
}

// The guest of a freeze that has ended is not the agent's concern.
func TestEndedFreezeLeavesTheGuestAlone(t *testing.T) {
	w := newWorld()
	w.mustRun(t)
	w.end(freeze.Release)
	w.mustRun(t)
	w.byUser, w.frozen = true, true
	w.end(freeze.Open)
	w.mustRun(t)
	w.expect(t, freeze.Thawed, true, true)
}

// The metadata come from the launcher, which a guest may have taken over.
func TestLostAndHostileRecords(t *testing.T) {
	for name, c := range map[string]struct {
		happens func(*world)
		stage   freeze.Stage
		id      string
	}{
		"unreadable":                    {func(w *world) { w.recordErr = hypervisor.ErrFreezeRecord }, freeze.Failed, "a"},
		"removed":                       {func(w *world) { w.record = nil }, freeze.Failed, "a"},
		"unreadable, and none reported": {func(w *world) { w.recordErr, w.reported = hypervisor.ErrFreezeRecord, freeze.Record{} }, freeze.Failed, "a"},
		"unreadable, and no intent": {func(w *world) {
			w.recordErr, w.reported, w.intent = hypervisor.ErrFreezeRecord, freeze.Record{}, nil
		}, freeze.Failed, "unknown"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			w.mustRun(t)
			c.happens(w)
			w.mustRun(t)
			w.expect(t, c.stage, false, false)
			if w.record.ID != c.id {
				t.Errorf("the ID is %q", w.record.ID)
			}
			w.mustRun(t)
			if w.freezes != 1 {
				t.Errorf("the guest was frozen %d times for one intent", w.freezes)
			}
		})
	}
	t.Run("removed after the end", func(t *testing.T) {
		w := newWorld()
		w.mustRun(t)
		w.end(freeze.Release)
		w.mustRun(t)
		w.record = nil
		w.end(freeze.Open)
		w.mustRun(t)
		if w.freezes != 1 || w.frozen {
			t.Errorf("frozen %d times for one intent", w.freezes)
		}
	})
}

// The agent ends before or after each of its calls. The next process continues: a guest does not stay frozen, and no
// freeze that was interrupted counts as kept.
func TestAgentIsKilledAtEachCall(t *testing.T) {
	kills := 0
	for _, lost := range []bool{false, true} {
		for first := 1; ; first++ {
			w := newWorld()
			w.left, w.lost = first, lost
			survived := w.run(t) == nil
			w.left = 0
			w.mustRun(t)
			w.expect(t, freeze.Frozen, false, true)
			if survived {
				break
			}
			kills++
			for second := 1; ; second++ {
				end := *w
				end.end(freeze.Release)
				end.left = second
				survived := end.run(t) == nil
				end.left = 0
				end.mustRun(t)
				end.expect(t, freeze.Thawed, end.record.Kept, false)
				if end.freezes != 1 || end.thaws != 1 {
					t.Errorf("killed at calls %d and %d: frozen %d times, thawed %d times", first, second, end.freezes, end.thaws)
				}
				if survived {
					break
				}
				kills++
			}
		}
	}
	if kills < 20 {
		t.Errorf("only %d kills", kills)
	}
}

// A kill between the thaw and the write of the record loses the proof.
func TestThawWithoutRecordIsNotKept(t *testing.T) {
	w := newWorld()
	w.mustRun(t)
	w.end(freeze.Release)
	// It reads the record, queries the guest, thaws it, and ends before the record is written.
	w.left, w.lost = 4, true
	if err := w.run(t); !errors.Is(err, errKilled) {
		t.Fatal(err)
	}
	w.expect(t, freeze.Frozen, false, false)
	w.left = 0
	w.mustRun(t)
	w.expect(t, freeze.Thawed, false, false)
}
