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
	fd, err := unix.Openat(int(process.Fd()), name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "openat", Path: process.Name() + "/" + name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
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
	pod, err := pidNamespace(libvirtd)
	if err != nil {
		return fmt.Errorf("find the launcher Pod's processes: %w", err)
	}
	own, err := os.Open("/proc/self")
	if err != nil {
		return err
	}
	defer func() { _ = own.Close() }()
	if node, err := pidNamespace(own); err != nil || node == pod {
		return errors.Join(err, errors.New("the launcher Pod has no process namespace of its own"))
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
		if ns, err := pidNamespace(dir); err == nil && ns == pod && Comm(dir, ".") == QEMU {
			visit(dir, pid)
		}
		_ = dir.Close()
	}
	return nil
}

// namespace identifies a namespace.
type namespace struct{ dev, ino uint64 }

func pidNamespace(process *os.File) (namespace, error) {
	var stat unix.Stat_t
	if err := unix.Fstatat(int(process.Fd()), "ns/pid", &stat, 0); err != nil {
		return namespace{}, &os.PathError{Op: "stat", Path: process.Name() + "/ns/pid", Err: err}
	}
	return namespace{uint64(stat.Dev), stat.Ino}, nil //nolint:unconvert // the width differs between architectures
}
