// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podprocess

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// pod runs a process by a name in a process namespace of its own, and returns its directory.
func pod(t *testing.T, name string) (*exec.Cmd, *os.File) {
	t.Helper()
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Skip(err)
	}
	program := filepath.Join(t.TempDir(), name)
	if err := os.Symlink(sleep, program); err != nil {
		t.Fatal(err)
	}
	c := exec.Command(program, "600")
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}
	if err := c.Start(); errors.Is(err, fs.ErrPermission) {
		t.Skip("needs to be allowed to make namespaces")
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = c.Process.Kill(), c.Wait() })
	dir, err := os.Open(fmt.Sprintf("/proc/%d", c.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = dir.Close() })
	return c, dir
}

func TestGuestEnd(t *testing.T) {
	qemu, dir := pod(t, QEMU)
	end, err := GuestEnd(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer end.Close()
	if dead, err := end.Within(10 * time.Millisecond); dead || err != nil {
		t.Errorf("a process that runs: %t, %v", dead, err)
	}
	if err := qemu.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if dead, err := end.Within(time.Minute); !dead || err != nil {
		t.Errorf("a process that was killed: %t, %v", dead, err)
	}
	if err := qemu.Wait(); err == nil {
		t.Error("it ended by itself")
	}
	if dead, err := end.Within(0); !dead || err != nil {
		t.Errorf("a process that is gone: %t, %v", dead, err)
	}
}

func TestGuestEndOfNone(t *testing.T) {
	_, dir := pod(t, "another")
	if _, err := GuestEnd(dir); !errors.Is(err, errNotOne) {
		t.Errorf("got %v", err)
	}
}

func TestGuestEndStaysInThePod(t *testing.T) {
	// The process is in the agent's own namespace, where every process of the node would be looked at.
	self, err := os.Open("/proc/self")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = self.Close() }()
	if _, err := GuestEnd(self); err == nil || !strings.Contains(err.Error(), "namespace of its own") {
		t.Errorf("got %v", err)
	}
}

func TestEndOfANumberThatIsAnothers(t *testing.T) {
	qemu, dir := pod(t, QEMU)
	_ = qemu.Process.Kill()
	_ = qemu.Wait()
	// The number stands for one that was given out again.
	if end, err := endOf(dir, os.Getpid()); err == nil {
		end.Close()
		t.Error("the watch is of another process")
	}
}
