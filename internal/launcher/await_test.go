// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package launcher

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vireo-project/vireo/internal/wire/libvirtwire"
)

// incoming is a libvirtd to which a guest migrates. Its states follow each other with each event.
type incoming struct {
	states []domainState
	events chan libvirtwire.Event
}

func (i *incoming) SubscribeLifecycle(context.Context) error { return nil }

func (i *incoming) Events() <-chan libvirtwire.Event { return i.events }

func (i *incoming) Lookup(_ context.Context, name string) (libvirtwire.Domain, error) {
	if i.states[0].state == libvirtwire.StateNone {
		return libvirtwire.Domain{}, &libvirtwire.Error{Code: libvirtwire.CodeNoDomain}
	}
	return libvirtwire.Domain{Name: name}, nil
}

func (i *incoming) State(context.Context, libvirtwire.Domain) (libvirtwire.State, int32, error) {
	return i.states[0].state, i.states[0].reason, nil
}

func TestAwait(t *testing.T) {
	paused := func(reason libvirtwire.PausedReason) domainState {
		return domainState{libvirtwire.StatePaused, int32(reason)}
	}
	receiving, running := paused(libvirtwire.PausedMigration), domainState{libvirtwire.StateRunning, 1}
	for name, tc := range map[string]struct {
		states []domainState
		// left is how many states are not waited for.
		left int
		err  string
	}{
		"it runs":                  {states: []domainState{running}},
		"it arrives":               {states: []domainState{{}, paused(libvirtwire.PausedStartingUp), receiving, running, running}, left: 1},
		"it arrives paused":        {states: []domainState{receiving, paused(libvirtwire.PausedUser)}},
		"it has stopped by itself": {states: []domainState{receiving, paused(0)}},
		"it arrives by post-copy":  {states: []domainState{receiving, {libvirtwire.StateRunning, int32(libvirtwire.RunningPostcopy)}}},
		"the migration fails":      {states: []domainState{receiving, {libvirtwire.StateShutoff, 0}}, err: "not in this Pod after 59s"},
		"no migration":             {states: []domainState{{}}, err: "not in this Pod after 59s"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				libvirtd := &incoming{states: tc.states, events: make(chan libvirtwire.Event)}
				ctx, cancel := context.WithTimeout(t.Context(), 59*time.Second)
				defer cancel()
				done := make(chan error, 1)
				go func() { done <- Await{Domain: "default_vm", Timeout: 59 * time.Second}.runWith(ctx, libvirtd) }()
				for synctest.Wait(); len(done) == 0 && len(libvirtd.states) > 1; synctest.Wait() {
					libvirtd.states = libvirtd.states[1:]
					libvirtd.events <- libvirtwire.Event{}
				}
				err := <-done
				if (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
					t.Errorf("error %v, want %q", err, tc.err)
				}
				if left := len(libvirtd.states) - 1; left != tc.left {
					t.Errorf("%d states are left, want %d", left, tc.left)
				}
			})
		})
	}
}

func TestAwaitEndsWithTheConnection(t *testing.T) {
	libvirtd := &incoming{states: []domainState{{}}, events: make(chan libvirtwire.Event)}
	close(libvirtd.events)
	if err := (Await{Domain: "default_vm", Timeout: time.Minute}).runWith(t.Context(), libvirtd); err == nil ||
		errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}
