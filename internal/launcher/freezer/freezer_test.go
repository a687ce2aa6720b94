// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package freezer

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/wire/libvirtwire"
)

// world is a fake guest and its libvirtd.
type world struct {
	state     libvirtwire.State
	frozen    bool
	note      string
	noteFirst bool
	// agent is the error of every agent command, hangs that of a freeze, full that of the sync of the persistent state.
	agent, hangs, full error
	// bare reports whether the guest has no file systems that can be frozen.
	bare bool
	// synced is how often the state was written to the disk, syncedFrozen whether the guest was frozen then.
	synced       int
	syncedFrozen bool
}

// freezer returns the Freezer of the guest.
func (w *world) freezer() Freezer {
	return Freezer{Hypervisor: w, Domain: "ns_vm", SyncState: func() error {
		w.synced++
		w.syncedFrozen = w.frozen
		return w.full
	}}
}

func (w *world) Lookup(_ context.Context, name string) (libvirtwire.Domain, error) {
	return libvirtwire.Domain{Name: name}, nil
}

func (w *world) State(context.Context, libvirtwire.Domain) (libvirtwire.State, int32, error) {
	return w.state, 0, nil
}

func (w *world) AgentCommand(_ context.Context, _ libvirtwire.Domain, command string, _ time.Duration) (string, error) {
	switch {
	case w.agent != nil:
		return "", w.agent
	case strings.Contains(command, "freeze-freeze"):
		if w.hangs != nil {
			return "", w.hangs
		}
		if w.noteFirst = w.note != ""; w.bare {
			return `{"return":0}`, nil
		}
		w.frozen = true
		return `{"return":2}`, nil
	case strings.Contains(command, "freeze-thaw"):
		w.frozen = false
		return `{"return":2}`, nil
	case w.frozen:
		return `{"return":"frozen"}`, nil
	default:
		return `{"return":"thawed"}`, nil
	}
}

func (w *world) SetMetadata(_ context.Context, _ libvirtwire.Domain, element, _, namespace string) error {
	if namespace != launcherpod.FreezeURI {
		return errors.New("another namespace")
	}
	if element == "" && w.note == "" {
		return &libvirtwire.Error{Code: libvirtwire.CodeNoDomainMetadata}
	}
	w.note = element
	return nil
}

func TestFreezeAndThaw(t *testing.T) {
	w := &world{state: libvirtwire.StateRunning}
	f := w.freezer()
	until := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	if err := f.Freeze(t.Context(), until); err != nil || !w.frozen || !w.noteFirst ||
		w.note != launcherpod.FreezeNote(until) {
		t.Fatalf("%v: %+v", err, w)
	}
	if w.synced != 1 || !w.syncedFrozen {
		t.Fatalf("the persistent state was not written to the disk after the freeze: %+v", w)
	}
	if err := f.Freeze(t.Context(), time.Time{}); err != nil || w.note != launcherpod.FreezeNote(time.Time{}) {
		t.Fatalf("for longer: %v: %+v", err, w)
	}
	for range 2 {
		if err := f.Thaw(t.Context()); err != nil || w.frozen || w.note != "" {
			t.Fatalf("%v: %+v", err, w)
		}
	}
}

func TestNothingToFreeze(t *testing.T) {
	for name, tc := range map[string]struct {
		world *world
		want  error
	}{
		"no agent":   {&world{state: libvirtwire.StateRunning, agent: &libvirtwire.Error{Code: libvirtwire.CodeAgentUnresponsive}}, ErrNoAgent},
		"no channel": {&world{state: libvirtwire.StateRunning, agent: &libvirtwire.Error{Code: libvirtwire.CodeArgumentUnsupported}}, ErrNoAgent},
		"paused":     {&world{state: libvirtwire.StatePaused}, ErrPaused},
	} {
		t.Run(name, func(t *testing.T) {
			f := tc.world.freezer()
			if err := f.Freeze(t.Context(), time.Time{}); !errors.Is(err, tc.want) || tc.world.note != "" ||
				tc.world.synced != 1 {
				t.Errorf("freeze: %v, %+v", err, tc.world)
			}
			if err := f.Thaw(t.Context()); !errors.Is(err, tc.want) {
				t.Errorf("thaw: %v", err)
			}
		})
	}
}

func TestGuestWithoutFileSystems(t *testing.T) {
	w := &world{state: libvirtwire.StateRunning, bare: true}
	f := w.freezer()
	if err := f.Freeze(t.Context(), time.Time{}); !errors.Is(err, ErrNothing) || w.note != "" || !w.noteFirst ||
		w.synced != 1 {
		t.Errorf("%v: %+v", err, w)
	}
	if err := f.Thaw(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestStateThatCannotBeWrittenFailsTheFreeze(t *testing.T) {
	full := errors.New("no space left on device")
	for name, w := range map[string]*world{
		"frozen":  {state: libvirtwire.StateRunning, full: full},
		"paused":  {state: libvirtwire.StatePaused, full: full},
		"bare":    {state: libvirtwire.StateRunning, full: full, bare: true},
		"stalled": {state: libvirtwire.StateRunning, full: full, agent: &libvirtwire.Error{Code: libvirtwire.CodeAgentUnresponsive}},
	} {
		err := w.freezer().Freeze(t.Context(), time.Time{})
		if !errors.Is(err, full) || errors.Is(err, ErrNoAgent) || errors.Is(err, ErrPaused) {
			t.Errorf("%s: %v", name, err)
		}
		if w.frozen && !strings.Contains(w.note, "thaw=") {
			t.Errorf("%s: nothing thaws the guest: %q", name, w.note)
		}
	}
}

func TestFailedFreezeIsRecordedForThawing(t *testing.T) {
	w := &world{state: libvirtwire.StateRunning, hangs: errors.New("no response in time")}
	err := w.freezer().Freeze(t.Context(), time.Time{})
	if err == nil || !strings.Contains(w.note, "thaw=") {
		t.Errorf("%v: %+v", err, w)
	}
}
