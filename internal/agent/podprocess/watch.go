// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podprocess

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Watch reports the exit of one process. It is not affected if the process's pid is reused.
type Watch struct{ pidfd int }

// errNoSingleQEMU means that a launcher Pod has no process with QEMU's name, or several.
var errNoSingleQEMU = errors.New("not one process of the launcher Pod is QEMU's")

// WatchGuest returns a Watch of a launcher Pod's QEMU, which it finds by its name. The Pod's processes can fake the name, but
// this affects their own guest only, as their libvirtd could.
func WatchGuest(libvirtd *os.File) (*Watch, error) {
	w, count := (*Watch)(nil), 0
	var failed error
	err := EachQEMU(libvirtd, func(process *os.File, pid int) {
		if count++; count > 1 {
			return
		}
		w, failed = watchProcess(process, pid)
	})
	if err == nil {
		err = failed
	}
	if err == nil && count != 1 {
		err = fmt.Errorf("%w: there are %d", errNoSingleQEMU, count)
	}
	if err != nil {
		w.Close()
		return nil, err
	}
	return w, nil
}

func watchProcess(process *os.File, pid int) (*Watch, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, fmt.Errorf("watch a process: %w", err)
	}
	w := &Watch{pidfd: fd}
	// The directory always refers to the original process. As long as it has files, the pid has not been reused.
	if Comm(process, ".") != QEMU {
		w.Close()
		return nil, fmt.Errorf("watch a process: %w", fs.ErrNotExist)
	}
	return w, nil
}

// Exited waits for at most limit and reports whether the process has exited: all its threads have, its memory is freed and its
// files are closed.
func (w *Watch) Exited(limit time.Duration) (bool, error) {
	until := time.Now().Add(limit)
	for {
		left := max(time.Until(until), 0)
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(w.pidfd), Events: unix.POLLIN}}, int(left.Milliseconds()))
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return false, fmt.Errorf("wait for the exit of a process: %w", err)
		default:
			return n > 0, nil
		}
	}
}

// Close stops the watch. A nil Watch may be closed.
func (w *Watch) Close() {
	if w != nil {
		_ = unix.Close(w.pidfd)
	}
}
