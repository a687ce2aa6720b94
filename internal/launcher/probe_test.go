// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package launcher

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/libvirtrpc"
)

// guestAgent answers each command with the next of its answers, the last one again and again.
type guestAgent struct {
	answers map[string][]string
	heard   []string
	// states are those that the domain goes through, one with each question; the last one stays. Without any it runs.
	states []domainState
	// migrating is what is said of a job, jobErr its error.
	migrating bool
	jobErr    error
	// note is the domain's metadata; without any libvirt answers with an error.
	note string
}

func (g *guestAgent) Metadata(ctx context.Context, _ libvirtrpc.Domain, namespace string) (string, error) {
	if g.note == "" || namespace != launcherpod.ProbesURI {
		return "", &libvirtrpc.Error{Code: libvirtrpc.CodeNoDomainMetadata, Message: "metadata not found"}
	}
	return g.note, ctx.Err()
}

type domainState struct {
	state  libvirtrpc.State
	reason int32
}

func (g *guestAgent) State(ctx context.Context, _ libvirtrpc.Domain) (libvirtrpc.State, int32, error) {
	if len(g.states) == 0 {
		return libvirtrpc.StateRunning, 1, ctx.Err()
	}
	now := g.states[0]
	if len(g.states) > 1 {
		g.states = g.states[1:]
	}
	return now.state, now.reason, ctx.Err()
}

func (g *guestAgent) JobActive(ctx context.Context, _ libvirtrpc.Domain) (bool, error) {
	return g.migrating, errors.Join(g.jobErr, ctx.Err())
}

func (g *guestAgent) Lookup(_ context.Context, name string) (libvirtrpc.Domain, error) {
	if name != "default_vm" {
		return libvirtrpc.Domain{}, errors.New("no such domain")
	}
	return libvirtrpc.Domain{Name: name, ID: 1}, nil
}

func (g *guestAgent) AgentCommand(ctx context.Context, domain libvirtrpc.Domain, command string, _ time.Duration) (string, error) {
	var parsed struct {
		Execute   string          `json:"execute"`
		Arguments json.RawMessage `json:"arguments"`
	}
	if err := json.Unmarshal([]byte(command), &parsed); err != nil || domain.ID != 1 {
		return "", fmt.Errorf("bad command %s for %v: %w", command, domain, err)
	}
	g.heard = append(g.heard, parsed.Execute+" "+string(parsed.Arguments))
	answers := g.answers[parsed.Execute]
	if len(answers) == 0 {
		return "", errors.New("the agent is not connected")
	}
	if len(answers) > 1 {
		g.answers[parsed.Execute] = answers[1:]
	}
	return answers[0], ctx.Err()
}

func TestProbe(t *testing.T) {
	ended := func(fields string) map[string][]string {
		return map[string][]string{
			"guest-exec": {`{"return":{"pid":42}}`}, "guest-exec-status": {`{"return":{"exited":false}}`, `{"return":{"exited":true` + fields + `}}`},
		}
	}
	long := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("x", 1<<16)))
	for name, tc := range map[string]struct {
		answers map[string][]string
		command []string
		domain  string
		code    int
		out     string
		err     string
	}{
		"a ping":                  {answers: map[string][]string{"guest-ping": {`{"return":{}}`}}},
		"no agent":                {code: 1, err: "does not answer"},
		"another domain":          {domain: "default_other", code: 1, err: "find the guest"},
		"a good command":          {answers: ended(`,"exitcode":0,"out-data":"aGk="`), command: []string{"check", "-a"}, out: "hi"},
		"a bad command":           {answers: ended(`,"exitcode":3,"err-data":"bm8="`), command: []string{"check", "-a"}, code: 3, out: "no"},
		"a killed command":        {answers: ended(`,"signal":9`), command: []string{"check", "-a"}, code: 1, err: "signal 9"},
		"a code that is none":     {answers: ended(`,"exitcode":3221225477`), command: []string{"check", "-a"}, code: 1, err: "3221225477"},
		"an agent that says less": {answers: ended(``), command: []string{"check", "-a"}, code: 1, err: "does not say"},
		"endless output":          {answers: ended(`,"exitcode":0,"out-data":"` + long + `"`), command: []string{"check", "-a"}, out: strings.Repeat("x", maxProbeOutput)},
		"an agent's nonsense":     {answers: map[string][]string{"guest-exec": {"?"}}, command: []string{"check", "-a"}, code: 1, err: "read the agent's answer"},
	} {
		t.Run(name, func(t *testing.T) {
			guest := &guestAgent{answers: tc.answers}
			p := Probe{Domain: "default_vm", Command: tc.command, Timeout: time.Minute}
			if tc.domain != "" {
				p.Domain = tc.domain
			}
			var out bytes.Buffer
			code, err := p.runWith(context.Background(), guest, &out)
			if code != tc.code || out.String() != tc.out {
				t.Errorf("code %d, printed %d bytes (%.20q)", code, out.Len(), out.String())
			}
			if (err == nil) != (tc.err == "") || (err != nil && !strings.Contains(err.Error(), tc.err)) {
				t.Errorf("error %v, want %q", err, tc.err)
			}
			if tc.command != nil && code != 1 {
				want := []string{`guest-exec {"arg":["-a"],"capture-output":true,"path":"check"}`, `guest-exec-status {"pid":42}`, `guest-exec-status {"pid":42}`}
				if diff := cmp.Diff(want, guest.heard); diff != "" {
					t.Error(diff)
				}
			}
		})
	}
}

func TestProbeGivesUp(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	guest := &guestAgent{answers: map[string][]string{"guest-exec": {`{"return":{"pid":1}}`}, "guest-exec-status": {`{"return":{"exited":false}}`}}}
	cancel()
	code, err := Probe{Domain: "default_vm", Command: []string{"sleep"}, Timeout: time.Minute}.runWith(ctx, guest, &bytes.Buffer{})
	if code != probeFailed || err == nil {
		t.Errorf("code %d, %v", code, err)
	}
	if code, err := (Probe{}).Run(ctx, &bytes.Buffer{}); code != probeFailed || err == nil {
		t.Errorf("an empty probe: code %d, %v", code, err)
	}
}

// TestPingOfAGuestThatCannotAnswer has no agent that answers in any of its cases.
func TestPingOfAGuestThatCannotAnswer(t *testing.T) {
	paused := func(reason libvirtrpc.PausedReason) domainState {
		return domainState{libvirtrpc.StatePaused, int32(reason)}
	}
	running := domainState{libvirtrpc.StateRunning, 1}
	for name, tc := range map[string]struct {
		guest guestAgent
		code  int
		asked bool
	}{
		"paused by a user":                   {guest: guestAgent{states: []domainState{paused(libvirtrpc.PausedUser)}}},
		"switching over":                     {guest: guestAgent{states: []domainState{paused(libvirtrpc.PausedMigration)}}},
		"post-copy, source":                  {guest: guestAgent{states: []domainState{paused(libvirtrpc.PausedPostcopy)}}},
		"post-copy, target":                  {guest: guestAgent{states: []domainState{{libvirtrpc.StateRunning, int32(libvirtrpc.RunningPostcopy)}}}},
		"post-copy that broke off":           {guest: guestAgent{states: []domainState{paused(libvirtrpc.PausedPostcopyFailed)}}},
		"migrating":                          {guest: guestAgent{migrating: true}},
		"paused while the agent is asked":    {guest: guestAgent{states: []domainState{running, paused(libvirtrpc.PausedUser)}}, asked: true},
		"unpaused, and silent":               {guest: guestAgent{states: []domainState{running}}, asked: true, code: 1},
		"an I/O error":                       {guest: guestAgent{states: []domainState{paused(libvirtrpc.PausedIOError)}}, asked: true, code: 1},
		"a watchdog":                         {guest: guestAgent{states: []domainState{paused(libvirtrpc.PausedWatchdog)}}, asked: true, code: 1},
		"a crash":                            {guest: guestAgent{states: []domainState{paused(libvirtrpc.PausedCrashed)}}, asked: true, code: 1},
		"a reason that nobody knows":         {guest: guestAgent{states: []domainState{paused(99)}}, asked: true, code: 1},
		"suspended by itself":                {guest: guestAgent{states: []domainState{{libvirtrpc.StatePMSuspended, 0}}}, asked: true, code: 1},
		"probes that are paused":             {guest: guestAgent{note: launcherpod.ProbesNote}},
		"a job that libvirt does not answer": {guest: guestAgent{migrating: true, jobErr: errors.New("no statistics")}, asked: true, code: 1},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			code, err := Probe{Domain: "default_vm", Timeout: time.Minute}.runWith(t.Context(), &tc.guest, &out)
			if code != tc.code || (err == nil) != (code == 0) {
				t.Errorf("code %d, error %v, printed %q", code, err, out.String())
			}
			if asked := len(tc.guest.heard) > 0; asked != tc.asked {
				t.Errorf("the agent was asked: %t", asked)
			}
		})
	}
}

// The annotation is about guestAgentPing alone.
func TestACommandIsRunThoughProbesArePaused(t *testing.T) {
	guest := &guestAgent{note: launcherpod.ProbesNote}
	code, err := Probe{Domain: "default_vm", Command: []string{"check"}, Timeout: time.Minute}.runWith(t.Context(), guest, &bytes.Buffer{})
	if code != probeFailed || err == nil || len(guest.heard) == 0 {
		t.Errorf("code %d, %v, heard %v", code, err, guest.heard)
	}
}

// A ping may last until the guest's time is over; the domain's state is read all the same.
func TestPingThatTakesAllTheTimePassesWhenTheGuestIsPaused(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	guest := &guestAgent{states: []domainState{{libvirtrpc.StateRunning, 1}, {libvirtrpc.StatePaused, int32(libvirtrpc.PausedUser)}}}
	cancel()
	code, err := Probe{Domain: "default_vm", Timeout: time.Minute}.runWith(ctx, guest, &bytes.Buffer{})
	if code != 0 || err != nil {
		t.Errorf("code %d, %v", code, err)
	}
}
