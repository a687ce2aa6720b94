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

	"github.com/vireo-project/vireo/internal/libvirtrpc"
)

// guestAgent answers each command with the next of its answers, the last one again and again.
type guestAgent struct {
	answers map[string][]string
	heard   []string
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
			code, err := p.look(context.Background(), guest, &out)
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
	code, err := Probe{Domain: "default_vm", Command: []string{"sleep"}, Timeout: time.Minute}.look(ctx, guest, &bytes.Buffer{})
	if code != probeFailed || err == nil {
		t.Errorf("code %d, %v", code, err)
	}
	if code, err := (Probe{}).Run(ctx, &bytes.Buffer{}); code != probeFailed || err == nil {
		t.Errorf("an empty probe: code %d, %v", code, err)
	}
}
