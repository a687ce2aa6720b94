// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// exitWatch reports the exit of one process. It is not affected if the process's pid is reused.
type exitWatch struct{ pidfd *os.File }

// Exited waits for at most limit and reports whether the process has exited: all its threads have, its memory is freed and its
// files are closed.
func (w *exitWatch) Exited(limit time.Duration) (bool, error) {
	raw, err := w.pidfd.SyscallConn()
	if err != nil {
		return false, err
	}
	exited, failed := false, error(nil)
	if err := raw.Control(func(fd uintptr) { exited, failed = poll(int(fd), limit) }); err != nil {
		return false, err
	}
	return exited, failed
}

func poll(pidfd int, limit time.Duration) (bool, error) {
	until := time.Now().Add(limit)
	for {
		left := max(time.Until(until), 0)
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, int(left.Milliseconds()))
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

// Close stops the watch. A nil exitWatch may be closed.
func (w *exitWatch) Close() {
	if w != nil {
		_ = w.pidfd.Close()
	}
}
