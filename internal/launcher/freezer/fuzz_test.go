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

// maxError bounds an error, which a backup tool logs, in bytes.
const maxError = 1 << 10

// hostileGuest is a guest whose agent returns an arbitrary response.
type hostileGuest struct {
	world
	response string
	execute  []string
	// unnoted means that a freeze was sent that was not recorded.
	unnoted bool
}

func (g *hostileGuest) AgentCommand(
	_ context.Context, _ libvirtwire.Domain, command string, _ time.Duration,
) (string, error) {
	g.execute = append(g.execute, command)
	g.unnoted = g.unnoted || strings.Contains(command, "fsfreeze-freeze") && g.note == ""
	return g.response, nil
}

// FuzzFreeze checks that, whatever the guest agent returns, a freeze is recorded before it is sent, a failure leaves a
// record with which virt-handler thaws the guest unless nothing was frozen, and the error is short.
func FuzzFreeze(f *testing.F) {
	f.Add(`{"return":"frozen"}`)
	f.Add(`{"return":"thawed"}`)
	f.Add(`{"return":2}`)
	f.Add(`{"return":` + strings.Repeat("9", 2000) + `}`)
	f.Add(`{"return":{"frozen":["frozen"]}}`)
	f.Add(`{"error":{"class":"GenericError","desc":"x"}}`)
	f.Fuzz(func(t *testing.T, response string) {
		g := &hostileGuest{world: world{state: libvirtwire.StateRunning}, response: response}
		freezer := Freezer{Hypervisor: g, Domain: "ns_vm", SyncState: func() error { return nil }}
		until := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		err := freezer.Freeze(t.Context(), until)
		if g.unnoted {
			t.Error("a freeze was not recorded")
		}
		if err == nil && g.note != launcherpod.FreezeNote(until) {
			t.Errorf("the note is %q", g.note)
		}
		left := len(g.execute) > 1 && !errors.Is(err, ErrNothing)
		if err != nil && (len(err.Error()) > maxError || left != strings.Contains(g.note, "thaw=")) {
			t.Errorf("an error of %d bytes, and the note %q", len(err.Error()), g.note)
		}
		if err := freezer.Thaw(t.Context()); err == nil && g.note != "" ||
			err != nil && (len(err.Error()) > maxError || errors.Is(err, ErrNoAgent)) {
			t.Errorf("thaw: %.100v, and the note %q", err, g.note)
		}
	})
}
