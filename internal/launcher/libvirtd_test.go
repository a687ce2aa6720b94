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
	"syscall"
	"testing"
	"time"

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
