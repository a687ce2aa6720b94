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
	"github.com/vireo-project/vireo/internal/wire/libvirtwire"
)

// guestAgent is a fake guest agent. It returns the next of a command's responses for each call, and the last one
// repeatedly.
type guestAgent struct {
	responses map[string][]string
	commands  []string
	// states are the results of State, one for each call; the last one is repeated. The default is running.
	states []domainState
	// migrating and jobErr are the result of JobActive.
	migrating bool
	jobErr    error
	// note is the domain's metadata; without any, Metadata returns an error.
	note string
}

func (g *guestAgent) Metadata(ctx context.Context, _ libvirtwire.Domain, namespace string) (string, error) {
	if g.note == "" || namespace != launcherpod.ProbesURI {
		return "", &libvirtwire.Error{Code: libvirtwire.CodeNoDomainMetadata, Message: "metadata not found"}
	}
	return g.note, ctx.Err()
}

type domainState struct {
	state  libvirtwire.State
	reason int32
}

func (g *guestAgent) State(ctx context.Context, _ libvirtwire.Domain) (libvirtwire.State, int32, error) {
	if len(g.states) == 0 {
		return libvirtwire.StateRunning, 1, ctx.Err()
	}
	now := g.states[0]
	if len(g.states) > 1 {
		g.states = g.states[1:]
	}
	return now.state, now.reason, ctx.Err()
}

func (g *guestAgent) JobActive(ctx context.Context, _ libvirtwire.Domain) (bool, error) {
	return g.migrating, errors.Join(g.jobErr, ctx.Err())
}

func (g *guestAgent) Lookup(_ context.Context, name string) (libvirtwire.Domain, error) {
	if name != "default_vm" {
		return libvirtwire.Domain{}, errors.New("no such domain")
	}
	return libvirtwire.Domain{Name: name, ID: 1}, nil
}

func (g *guestAgent) AgentCommand(
	ctx context.Context, domain libvirtwire.Domain, command string, _ time.Duration,
) (string, error) {
	var parsed struct {
		Execute   string          `json:"execute"`
		Arguments json.RawMessage `json:"arguments"`
	}
	if err := json.Unmarshal([]byte(command), &parsed); err != nil || domain.ID != 1 {
		return "", fmt.Errorf("bad command %s for %v: %w", command, domain, err)
	}
	g.commands = append(g.commands, parsed.Execute+" "+string(parsed.Arguments))
	responses := g.responses[parsed.Execute]
	if len(responses) == 0 {
		return "", errors.New("the agent is not connected")
	}
	if len(responses) > 1 {
		g.responses[parsed.Execute] = responses[1:]
	}
	return responses[0], ctx.Err()
}

func TestProbe(t *testing.T) {
	ended := func(fields string) map[string][]string {
		return map[string][]string{
			"guest-exec": {`{"return":{"pid":42}}`}, "guest-exec-status": {`{"return":{"exited":false}}`, `{"return":{"exited":true` + fields + `}}`},
		}
	}
	long := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("x", 1<<16)))
	for name, tc := range map[string]struct {
		responses map[string][]string
		command   []string
		domain    string
		code      int
		out       string
		err       string
	}{
		"a ping":                        {responses: map[string][]string{"guest-ping": {`{"return":{}}`}}},
		"no agent":                      {code: 1, err: "does not respond"},
		"another domain":                {domain: "default_other", code: 1, err: "find the guest"},
		"a good command":                {responses: ended(`,"exitcode":0,"out-data":"aGk="`), command: []string{"check", "-a"}, out: "hi"},
		"a bad command":                 {responses: ended(`,"exitcode":3,"err-data":"bm8="`), command: []string{"check", "-a"}, code: 3, out: "no"},
		"a killed command":              {responses: ended(`,"signal":9`), command: []string{"check", "-a"}, code: 1, err: "signal 9"},
		"a code that is none":           {responses: ended(`,"exitcode":3221225477`), command: []string{"check", "-a"}, code: 1, err: "3221225477"},
		"an agent without an exit code": {responses: ended(``), command: []string{"check", "-a"}, code: 1, err: "does not report"},
		"endless output":                {responses: ended(`,"exitcode":0,"out-data":"` + long + `"`), command: []string{"check", "-a"}, out: strings.Repeat("x", maxProbeOutput)},
		"an invalid response":           {responses: map[string][]string{"guest-exec": {"?"}}, command: []string{"check", "-a"}, code: 1, err: "read the response of the guest agent"},
	} {
		t.Run(name, func(t *testing.T) {
			guest := &guestAgent{responses: tc.responses}
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
				if diff := cmp.Diff(want, guest.commands); diff != "" {
					t.Error(diff)
				}
			}
		})
	}
}

func TestProbeTimeout(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	guest := &guestAgent{responses: map[string][]string{"guest-exec": {`{"return":{"pid":1}}`}, "guest-exec-status": {`{"return":{"exited":false}}`}}}
	cancel()
	code, err := Probe{Domain: "default_vm", Command: []string{"sleep"}, Timeout: time.Minute}.runWith(ctx, guest,
		&bytes.Buffer{})
	if code != probeFailed || err == nil {
		t.Errorf("code %d, %v", code, err)
	}
	if code, err := (Probe{}).Run(ctx, &bytes.Buffer{}); code != probeFailed || err == nil {
		t.Errorf("an empty probe: code %d, %v", code, err)
	}
}

// The guest agent does not respond in any of the cases.
func TestPingOfUnresponsiveGuest(t *testing.T) {
	paused := func(reason libvirtwire.PausedReason) domainState {
		return domainState{libvirtwire.StatePaused, int32(reason)}
	}
	running := domainState{libvirtwire.StateRunning, 1}
	for name, tc := range map[string]struct {
		guest  guestAgent
		code   int
		pinged bool
	}{
		"paused by a user":       {guest: guestAgent{states: []domainState{paused(libvirtwire.PausedUser)}}},
		"switching over":         {guest: guestAgent{states: []domainState{paused(libvirtwire.PausedMigration)}}},
		"post-copy, source":      {guest: guestAgent{states: []domainState{paused(libvirtwire.PausedPostcopy)}}},
		"post-copy, target":      {guest: guestAgent{states: []domainState{{libvirtwire.StateRunning, int32(libvirtwire.RunningPostcopy)}}}},
		"failed post-copy":       {guest: guestAgent{states: []domainState{paused(libvirtwire.PausedPostcopyFailed)}}},
		"migrating":              {guest: guestAgent{migrating: true}},
		"paused during the ping": {guest: guestAgent{states: []domainState{running, paused(libvirtwire.PausedUser)}}, pinged: true},
		"running, no response":   {guest: guestAgent{states: []domainState{running}}, pinged: true, code: 1},
		"an I/O error":           {guest: guestAgent{states: []domainState{paused(libvirtwire.PausedIOError)}}, pinged: true, code: 1},
		"a watchdog":             {guest: guestAgent{states: []domainState{paused(libvirtwire.PausedWatchdog)}}, pinged: true, code: 1},
		"a crash":                {guest: guestAgent{states: []domainState{paused(libvirtwire.PausedCrashed)}}, pinged: true, code: 1},
		"an internal error":      {guest: guestAgent{states: []domainState{paused(0)}}, pinged: true, code: 1},
		"not resumed by libvirt": {guest: guestAgent{states: []domainState{paused(14)}}, pinged: true, code: 1},
		"an unknown reason":      {guest: guestAgent{states: []domainState{paused(99)}}, pinged: true, code: 1},
		"suspended by the guest": {guest: guestAgent{states: []domainState{{libvirtwire.StatePMSuspended, 0}}}, pinged: true, code: 1},
		"paused probes":          {guest: guestAgent{note: launcherpod.ProbesNote}},
		"an unknown job state":   {guest: guestAgent{migrating: true, jobErr: errors.New("no statistics")}, pinged: true, code: 1},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			code, err := Probe{Domain: "default_vm", Timeout: time.Minute}.runWith(t.Context(), &tc.guest, &out)
			if code != tc.code || (err == nil) != (code == 0) {
				t.Errorf("code %d, error %v, printed %q", code, err, out.String())
			}
			if pinged := len(tc.guest.commands) > 0; pinged != tc.pinged {
				t.Errorf("the agent was pinged: %t", pinged)
			}
		})
	}
}

// The annotation only disables guestAgentPing.
func TestCommandRunsWhileProbesArePaused(t *testing.T) {
	guest := &guestAgent{note: launcherpod.ProbesNote}
	code, err := Probe{Domain: "default_vm", Command: []string{"check"}, Timeout: time.Minute}.runWith(t.Context(), guest,
		&bytes.Buffer{})
	if code != probeFailed || err == nil || len(guest.commands) == 0 {
		t.Errorf("code %d, %v, commands %v", code, err, guest.commands)
	}
}

// The domain's state is read even after the timeout of the ping.
func TestPingThatTimesOutSucceedsWhenTheGuestIsPaused(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	guest := &guestAgent{states: []domainState{{libvirtwire.StateRunning, 1},
		{libvirtwire.StatePaused, int32(libvirtwire.PausedUser)}}}
	cancel()
	code, err := Probe{Domain: "default_vm", Timeout: time.Minute}.runWith(ctx, guest, &bytes.Buffer{})
	if code != 0 || err != nil {
		t.Errorf("code %d, %v", code, err)
	}
}
