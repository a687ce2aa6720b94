// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package podprocess gives access to a launcher Pod's processes and to their files. It needs the node's process namespace.
package podprocess

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// MaxFile is the limit for what is read from a file of /proc or of a cgroup, in bytes.
const MaxFile = 1 << 20

// QEMU is QEMU's process name, which the kernel truncates to 15 bytes.
const QEMU = "qemu-system-x86"

// OpenIn opens a file in a process's directory of /proc.
func OpenIn(process *os.File, name string) (*os.File, error) {
	return OpenAt(process, name, unix.O_RDONLY, 0)
}

// Names returns the first names in a directory.
func Names(dir *os.File, most int) ([]string, error) {
	names, err := dir.Readdirnames(most)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return names, err
}

// Read returns what a file in a process's directory of /proc contains, up to a limit.
func Read(process *os.File, name string) (string, error) {
	f, err := OpenIn(process, name)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, MaxFile))
	return string(text), err
}

// Comm returns the kernel's name of a process, or of one of its threads, given its path; empty if it has ended. Any process can change its
// own name.
func Comm(process *os.File, thread string) string {
	name, err := Read(process, thread+"/comm")
	if err != nil {
		return ""
	}
	return strings.TrimSuffix(name, "\n")
}

// EachQEMU calls visit for each process with QEMU's name in the process namespace of a launcher Pod, which is its libvirtd's. The
// pid may have been reused by then; the directory is always that of the process.
func EachQEMU(libvirtd *os.File, visit func(process *os.File, pid int)) error {
	own, err := sharesNamespace(libvirtd, "pid", "/proc/self")
	if err == nil && own {
		err = errors.New("the launcher Pod has no process namespace of its own")
	}
	if err != nil {
		return err
	}
	processes, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	for _, process := range processes {
		pid, err := strconv.Atoi(process.Name())
		if err != nil {
			continue
		}
		dir, err := os.Open("/proc/" + process.Name())
		if err != nil {
			continue // It has exited.
		}
		if same, err := sharesNamespace(libvirtd, "pid", Reopen(dir)); err == nil && same && Comm(dir, ".") == QEMU {
			visit(dir, pid)
		}
		_ = dir.Close()
	}
	return nil
}

// sharesNamespace reports whether a process has the same namespace of a kind as another one, given the path of its directory in /proc.
func sharesNamespace(process *os.File, kind, other string) (bool, error) {
	a, errA := os.Stat(Reopen(process) + "/ns/" + kind)
	b, errB := os.Stat(other + "/ns/" + kind)
	if err := errors.Join(errA, errB); err != nil {
		return false, fmt.Errorf("find the namespaces of the launcher Pod: %w", err)
	}
	return os.SameFile(a, b), nil
}
