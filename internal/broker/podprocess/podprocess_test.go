// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podprocess

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
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

// exited waits until a process has exited, and reports whether it has.
func exited(t *testing.T, watch *os.File, limit time.Duration) bool {
	t.Helper()
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(watch.Fd()), Events: unix.POLLIN}}, int(limit.Milliseconds()))
	if err != nil {
		t.Fatal(err)
	}
	return n > 0
}

func TestWatchGuest(t *testing.T) {
	qemu, dir := pod(t, QEMU)
	watch, err := WatchGuest(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = watch.Close() }()
	if exited(t, watch, 10*time.Millisecond) {
		t.Error("a process that runs has exited")
	}
	if err := qemu.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if !exited(t, watch, time.Minute) {
		t.Error("a process that was killed has not exited")
	}
	if err := qemu.Wait(); err == nil {
		t.Error("it exited by itself")
	}
	if !exited(t, watch, 0) {
		t.Error("a process that was reaped has not exited")
	}
}

func TestWatchGuestWithoutQEMU(t *testing.T) {
	_, dir := pod(t, "another")
	if _, err := WatchGuest(dir); !errors.Is(err, errNoSingleQEMU) {
		t.Errorf("got %v", err)
	}
}

// A Pod may have thousands of processes with QEMU's name. Those take no descriptors, of which the broker has a number
// for all Pods.
func TestWatchGuestOfAPodWithManyQEMUs(t *testing.T) {
	const many = 64
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Skip(err)
	}
	program := filepath.Join(t.TempDir(), QEMU)
	if err := os.Symlink(sleep, program); err != nil {
		t.Fatal(err)
	}
	c := exec.Command("sh", "-c",
		fmt.Sprintf("i=0; while [ $i -lt %d ]; do %s 600 & i=$((i+1)); done; echo ready; wait", many, program))
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); errors.Is(err, fs.ErrPermission) {
		t.Skip("needs to be allowed to make namespaces")
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = c.Process.Kill(), c.Wait() })
	if _, err := fmt.Fscanln(out, new(string)); err != nil {
		t.Fatal(err)
	}
	dir, err := os.Open(fmt.Sprintf("/proc/%d", c.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = dir.Close() }()
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	few := before
	few.Cur = uint64(dir.Fd()) + many/2
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &few); err != nil {
		t.Fatal(err)
	}
	watch, err := WatchGuest(dir)
	if limitErr := unix.Setrlimit(unix.RLIMIT_NOFILE, &before); limitErr != nil {
		t.Fatal(limitErr)
	}
	if !errors.Is(err, errNoSingleQEMU) {
		_ = watch.Close()
		t.Errorf("got %v", err)
	}
}

func TestWatchGuestStaysInThePod(t *testing.T) {
	// The process is in the broker's own namespace, which has all processes of the node.
	self, err := os.Open("/proc/self")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = self.Close() }()
	if _, err := WatchGuest(self); err == nil || !strings.Contains(err.Error(), "namespace of its own") {
		t.Errorf("got %v", err)
	}
}

func TestWatchOfReusedPID(t *testing.T) {
	qemu, dir := pod(t, QEMU)
	_ = qemu.Process.Kill()
	_ = qemu.Wait()
	// Another process's pid, as if the kernel had reused the number.
	if watch, err := watchProcess(dir, os.Getpid()); err == nil {
		_ = watch.Close()
		t.Error("another process is watched")
	}
}

// What a Pod may put in the place of a file that the broker, which is root, reads for it.
func TestOpenWithinStaysInTheClaim(t *testing.T) {
	pod := t.TempDir()
	write := func(name, content string) {
		t.Helper()
		path := filepath.Join(pod, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700),
			os.WriteFile(path, []byte(content), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	link := func(to, name string) {
		t.Helper()
		if err := os.Symlink(to, filepath.Join(pod, name)); err != nil {
			t.Fatal(err)
		}
	}
	write("run/state/nvram/vm.fd", "variables")
	write("etc/secret", "another's")
	// The image may have symlinks above the mount point.
	if err := os.Mkdir(filepath.Join(pod, "var"), 0o700); err != nil {
		t.Fatal(err)
	}
	link("../run", "var/run")
	link("../../../etc/secret", "run/state/nvram/relative")
	link("/etc/secret", "run/state/nvram/absolute")
	link("vm.fd", "run/state/nvram/beside")
	link("nvram", "run/state/directory")
	dir, err := os.Open(pod)
	if err != nil {
		t.Fatal(err)
	}
	root := &Root{dir: dir}
	defer func() { _ = root.Close() }()

	f, err := root.OpenWithin("/var/run/state", "nvram/vm.fd", unix.S_IFREG)
	if err != nil {
		t.Fatal(err)
	}
	content, err := io.ReadAll(f)
	if _ = f.Close(); err != nil || string(content) != "variables" {
		t.Errorf("read %q, %v", content, err)
	}
	for name, want := range map[string]error{
		"nvram/relative": unix.ELOOP, "nvram/absolute": unix.ELOOP, "nvram/beside": unix.ELOOP, "directory/vm.fd": unix.ELOOP,
		"../../etc/secret": unix.EXDEV, "/etc/secret": unix.EXDEV, "nvram/none": unix.ENOENT,
	} {
		if f, err := root.OpenWithin("/var/run/state", name, unix.S_IFREG); !errors.Is(err, want) {
			_ = f.Close()
			t.Errorf("%s: got %v, want %v", name, err, want)
		}
	}

	// Another mount below the claim.
	if err := unix.Mount(filepath.Join(pod, "etc"), filepath.Join(pod, "run/state/nvram"), "", unix.MS_BIND,
		""); err != nil {
		t.Skipf("needs to be allowed to mount: %v", err)
	}
	defer func() { _ = unix.Unmount(filepath.Join(pod, "run/state/nvram"), unix.MNT_DETACH) }()
	if f, err := root.OpenWithin("/var/run/state", "nvram/secret", unix.S_IFREG); !errors.Is(err, unix.EXDEV) {
		_ = f.Close()
		t.Errorf("of another mount: got %v", err)
	}
}
