// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"libvirt.org/go/libvirt"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
)

func TestCallAll(t *testing.T) {
	unknown := errors.New("no such user")
	offline := credentialError("password", "root", libvirt.Error{Code: libvirt.ERR_AGENT_UNRESPONSIVE})
	lost := credentialError("password", "root", fmt.Errorf("set a password: %w", hypervisor.ErrUnreachable))
	for _, tc := range []struct {
		name      string
		responses []error
		made      int
		want      string
	}{
		{name: "all of them", responses: []error{nil, nil}, made: 2},
		{name: "one that the guest does not know keeps nothing from the others", responses: []error{unknown, nil, unknown}, made: 3,
			want: "no such user\nno such user"},
		{name: "no guest agent", responses: []error{unknown, offline, nil}, made: 2, want: hypervisor.AgentOffline},
		{name: "no libvirtd", responses: []error{lost, nil}, made: 1, want: lost.Error()},
	} {
		t.Run(tc.name, func(t *testing.T) {
			made := 0
			calls := make([]func() error, 0, len(tc.responses))
			for _, response := range tc.responses {
				calls = append(calls, func() error { made++; return response })
			}
			got := ""
			if err := callAll(calls); err != nil {
				got = err.Error()
			}
			if got != tc.want || made != tc.made {
				t.Errorf("got %q after %d calls, want %q after %d", got, made, tc.want, tc.made)
			}
		})
	}
}

// A guest decides how slowly its agent responds. libvirtd must time out first, with an error response, because a
// timeout in the agent closes the connection.
func TestLibvirtdTimesOutFirst(t *testing.T) {
	// seconds; libvirt's waits for a job and for guest-sync, and the requested timeout
	const turn, sync, response = 30, 5, 5
	for what, calls := range map[string]int{"credentials": 1, "guest information": 3} {
		if longest := calls * (turn + sync + response); int(guestTimeout.Seconds()) < longest {
			t.Errorf("%s can take %d s, and the connection is cut after %s", what, longest, guestTimeout)
		}
	}
}

func TestKeysForOldGuestAgents(t *testing.T) {
	zero, one := 0, 1
	for name, tc := range map[string]struct {
		user   string
		states []map[string]any
		want   string
	}{
		"written":      {"debian", []map[string]any{{"exited": false}, {"exited": true, "exitcode": zero}}, ""},
		"no such user": {"nobody", []map[string]any{{"exited": true, "exitcode": one, "err-data": []byte("su: user nobody does not exist\x1b[2J")}}, "nobody does not exist"},
		"killed":       {"debian", []map[string]any{{"exited": true, "signal": 9}}, "does not write"},
		"an option":    {"-c", nil, "begins with a dash"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var wrote map[string]any
				err := writeKeys(t.Context(), tc.user, []string{"ssh-ed25519 A", "ssh-ed25519 B"},
					func(_ context.Context, command string, arguments map[string]any, into any) error {
						response := map[string]any{"pid": 7}
						if command == "guest-exec" {
							wrote = arguments
						} else if response, tc.states = tc.states[0], tc.states[1:]; arguments["pid"] != int64(7) {
							t.Errorf("followed %v", arguments)
						}
						text, err := json.Marshal(response)
						if err != nil {
							return err
						}
						return json.Unmarshal(text, into)
					})
				if (err == nil) != (tc.want == "") ||
					err != nil && (!strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "\x1b")) {
					t.Errorf("got %v, want %q", err, tc.want)
				}
				if tc.user == "-c" {
					return
				}
				keys, err := base64.StdEncoding.DecodeString(wrote["input-data"].(string))
				if command := wrote["arg"].([]string); err != nil || string(keys) != "ssh-ed25519 A\nssh-ed25519 B\n" ||
					command[len(command)-1] != tc.user {
					t.Errorf("%v %q", wrote, keys)
				}
			})
		})
	}
}

// The script is for any POSIX shell.
func TestKeysScript(t *testing.T) {
	home := t.TempDir()
	for _, keys := range []string{"first\n", "second\n"} {
		command := exec.CommandContext(t.Context(), "/bin/sh", "-c", keysScript)
		command.Env, command.Stdin = []string{"HOME=" + home, "PATH=/usr/bin:/bin"}, strings.NewReader(keys)
		if out, err := command.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		got, err := os.ReadFile(filepath.Join(home, ".ssh", "authorized_keys"))
		if err != nil || string(got) != keys {
			t.Errorf("%q, %v", got, err)
		}
	}
	for name, mode := range map[string]os.FileMode{".ssh": 0o700 | os.ModeDir, ".ssh/authorized_keys": 0o600} {
		if info, err := os.Stat(filepath.Join(home, name)); err != nil || info.Mode() != mode {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
}
