// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package launcher

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// withoutInotify marks the process in which TestConnectWithoutInotify has no instance of inotify.
const withoutInotify = "VIREO_TEST_WITHOUT_INOTIFY"

// The limit is for a user in a user namespace, so the test runs again in one of its own.
func TestConnectWithoutInotify(t *testing.T) {
	if os.Getenv(withoutInotify) == "" {
		again := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^"+t.Name()+"$")
		again.Env = append(os.Environ(), withoutInotify+"=1")
		again.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  unix.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
		}
		out, err := again.CombinedOutput()
		if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSPC) {
			t.Skip("this machine has no user namespaces")
		}
		if err != nil || !bytes.Contains(out, []byte("PASS")) {
			t.Fatalf("%v:\n%s", err, out)
		}
		return
	}
	if err := os.WriteFile("/proc/sys/user/max_inotify_instances", []byte("0"), 0o600); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(t.TempDir(), "libvirt-sock")
	if err := waitForFile(t.Context(), socket); !errors.Is(err, unix.EMFILE) {
		t.Fatalf("got %v, want EMFILE", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := connect(ctx, socket); err == nil || errors.Is(err, unix.EMFILE) {
		t.Errorf("got %v, want attempts to connect until the context ends", err)
	}
}

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

// fakeCapabilities is a fake libvirtd that returns texts or fails.
type fakeCapabilities struct {
	hostErr, domainErr, cpuErr error
}

func (f fakeCapabilities) Capabilities(context.Context) (string, error) {
	return "<capabilities/>", f.hostErr
}

func (f fakeCapabilities) DomainCapabilities(_ context.Context, machine string) (string, error) {
	return "<domainCapabilities><machine>" + machine + "</machine><cpu><mode name='host-model' supported='yes'>" +
		"<model>EPYC</model></mode><mode name='custom'/></cpu></domainCapabilities>", f.domainErr
}

func (f fakeCapabilities) ExpandCPU(_ context.Context, machine, cpu string) (string, error) {
	return machine + cpu, f.cpuErr
}

func TestSaveCapabilities(t *testing.T) {
	refused := errors.New("refused")
	for name, tc := range map[string]struct {
		source  fakeCapabilities
		files   map[string]string
		message string
	}{
		"all responses": {fakeCapabilities{}, map[string]string{
			"capabilities.xml": "<capabilities/>",
			"domcapabilities.xml": "<domainCapabilities><machine>q35</machine><cpu><mode name='host-model' supported='yes'>" +
				"<model>EPYC</model></mode><mode name='custom'/></cpu></domainCapabilities>",
			"supported_features.xml": "q35<cpu><model>EPYC</model></cpu>",
		}, ""},
		"no response about the CPU":  {fakeCapabilities{cpuErr: refused}, nil, "features of the host's CPU"},
		"no response about the host": {fakeCapabilities{hostErr: refused}, nil, "host's capabilities"},
		"no response about guests":   {fakeCapabilities{domainErr: refused}, nil, "capabilities of q35"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			err := SaveCapabilities(t.Context(), tc.source, dir)
			if tc.message == "" && err != nil ||
				tc.message != "" && (!errors.Is(err, refused) || !strings.Contains(err.Error(), tc.message)) {
				t.Errorf("error %v, want one with %q", err, tc.message)
			}
			if diff := cmp.Diff(tc.files, filesIn(t, dir)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// The files are replaced if the node's kernel or firmware changed.
func TestSaveCapabilitiesReplaces(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "capabilities.xml")
	if err := os.WriteFile(file, []byte(strings.Repeat("old", 100)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := SaveCapabilities(t.Context(), fakeCapabilities{}, dir); err != nil {
		t.Fatal(err)
	}
	if got := filesIn(t, dir)["capabilities.xml"]; got != "<capabilities/>" {
		t.Errorf("the file has %q", got)
	}
	if err := SaveCapabilities(t.Context(), fakeCapabilities{}, filepath.Join(dir, "missing")); !errors.Is(err,
		os.ErrNotExist) {
		t.Errorf("error %v, want one about the missing directory", err)
	}
}

func filesIn(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var files map[string]string
	for _, entry := range entries {
		content, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if files == nil {
			files = map[string]string{}
		}
		files[entry.Name()] = string(content)
	}
	return files
}
