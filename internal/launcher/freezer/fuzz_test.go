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
	"github.com/vireo-project/vireo/internal/libvirtwire"
)

// maxError bounds an error, which a backup tool logs, in bytes.
const maxError = 1 << 10

// liar is a guest whose agent returns arbitrary answers.
type liar struct {
	world
	answer  string
	execute []string
	// unnoted means that a freeze was sent that was not recorded.
	unnoted bool
}

func (l *liar) AgentCommand(_ context.Context, _ libvirtwire.Domain, command string, _ time.Duration) (string, error) {
	l.execute = append(l.execute, command)
	l.unnoted = l.unnoted || strings.Contains(command, "fsfreeze-freeze") && l.note == ""
	return l.answer, nil
}

// FuzzFreeze checks that, whatever the guest agent returns, a freeze is recorded before it is sent, a failure leaves a record
// with which virt-handler thaws the guest, and the error is short.
func FuzzFreeze(f *testing.F) {
	f.Add(`{"return":"frozen"}`)
	f.Add(`{"return":"thawed"}`)
	f.Add(`{"return":2}`)
	f.Add(`{"return":` + strings.Repeat("9", 2000) + `}`)
	f.Add(`{"return":{"frozen":["frozen"]}}`)
	f.Add(`{"error":{"class":"GenericError","desc":"x"}}`)
	f.Fuzz(func(t *testing.T, answer string) {
		l := &liar{world: world{state: libvirtwire.StateRunning}, answer: answer}
		freezer := Freezer{Hypervisor: l, Domain: "ns_vm"}
		until := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		err := freezer.Freeze(t.Context(), until)
		if l.unnoted {
			t.Error("a freeze was not recorded")
		}
		if err == nil && l.note != launcherpod.FreezeNote(until) {
			t.Errorf("the note is %q", l.note)
		}
		if err != nil && (len(err.Error()) > maxError || len(l.execute) > 1 && !strings.Contains(l.note, "thaw=")) {
			t.Errorf("an error of %d bytes, and the note %q", len(err.Error()), l.note)
		}
		if err := freezer.Thaw(t.Context()); err == nil && l.note != "" || err != nil && (len(err.Error()) > maxError || errors.Is(err, ErrNoAgent)) {
			t.Errorf("thaw: %.100v, and the note %q", err, l.note)
		}
	})
}
