// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package launcher

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"testing/iotest"
)

func TestRelayLog(t *testing.T) {
	const stamp = "2026-11-21 12:46:41.322+0000: 22: "
	long := stamp + "error : virCommandWait:2748 : " + strings.Repeat("x", 3*maxLine) + "\n"
	for name, tc := range map[string]struct {
		line   string
		hidden bool
	}{
		"version":            {stamp + "info : libvirt version: 11.3.0, package: 3 (Debian)\n", true},
		"hostname":           {stamp + "info : hostname: virt-launcher-vm-abc\n", true},
		"no KVM":             {stamp + "error : virHostCPUGetCPUID:1467 : Unable to open /dev/kvm: No such file or directory\n", true},
		"KVM not permitted":  {stamp + "error : virHostCPUGetCPUID:1467 : Unable to open /dev/kvm: Permission denied\n", false},
		"a client's end":     {stamp + "error : virNetSocketReadWire:1791 : End of file while reading data: Input/output error\n", true},
		"a broken socket":    {stamp + "error : virNetSocketReadWire:1780 : Cannot recv data: Connection reset by peer\n", false},
		"agent's commands":   {stamp + "warning : qemuDomainObjTaintMsg:5505 : Domain id=1 name='ns_vm' uuid=u is tainted: custom-ga-command\n", true},
		"another taint":      {stamp + "warning : qemuDomainObjTaintMsg:5505 : Domain id=1 name='ns_vm' uuid=u is tainted: high-privileges\n", false},
		"a real error":       {stamp + "error : qemuProcessReportLogError:2057 : internal error: QEMU exited\n", false},
		"a guest that hides": {stamp + "error : qemuAgentCommand:1 : hostname: is tainted: custom-ga-command\n", false},
		"no log line":        {"libvirtd: initialisation failed\n", false},
		"no thread":          {"x: y: info : hostname: z\n", false},
		"last words":         {stamp + "error : main:1 : no line feed", false},
		"an empty line":      {"\n", false},
		"a long line":        {long, false},
	} {
		t.Run(name, func(t *testing.T) {
			const after = "after\n"
			text := tc.line
			if strings.HasSuffix(text, "\n") {
				text += after
			}
			var verbose, known bytes.Buffer
			relayLog(&verbose, iotest.OneByteReader(strings.NewReader(text)), true)
			relayLog(&known, strings.NewReader(text), false)
			if verbose.String() != text {
				t.Errorf("verbose: %q", verbose.String())
			}
			want := text
			if tc.hidden {
				want = after
			}
			if known.String() != want {
				t.Errorf("got %q, want %q", known.String(), want)
			}
		})
	}
}

type brokenWriter struct{ attempts int }

func (w *brokenWriter) Write([]byte) (int, error) {
	w.attempts++
	return 0, errors.New("broken pipe")
}

func TestRelayLogIgnoresWriteErrors(t *testing.T) {
	w := &brokenWriter{}
	relayLog(w, strings.NewReader("one\ntwo\n"), false)
	if w.attempts != 2 {
		t.Errorf("%d lines were read, want 2", w.attempts)
	}
}

func TestHarmlessLinesHaveAReason(t *testing.T) {
	for _, line := range harmlessLines {
		if line.why == "" || line.begin == "" {
			t.Errorf("%+v is incomplete", line)
		}
	}
}

func TestLogEnvironment(t *testing.T) {
	for _, filters := range []string{"1", "qemu", "0:qemu", "5:qemu", "1:", ":qemu", "1:a:b", "1:qemu x", "-1:qemu"} {
		if env, err := logEnvironment(filters); err == nil || env != nil {
			t.Errorf("%q gives %q, want an error and nothing", filters, env)
		}
	}
	if env, err := logEnvironment(" "); err != nil || env != nil {
		t.Errorf("no filters give %q, %v", env, err)
	}
	env, err := logEnvironment("3:rpc\n 1:*")
	if want := "LIBVIRT_LOG_FILTERS=3:rpc 1:* LIBVIRT_LOG_OUTPUTS=1:stderr"; err != nil || strings.Join(env, " ") != want {
		t.Errorf("got %q, %v, want %s", env, err, want)
	}
}
