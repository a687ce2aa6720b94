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

// End is the end of a process that has not come yet, or has. It is that of one process for good: a number that is used again does
// not lead to another.
type End struct{ pidfd int }

// errNotOne means that it is not known which process runs the guest.
var errNotOne = errors.New("not one process of the launcher Pod is QEMU's")

// GuestEnd watches for the end of a launcher Pod's QEMU. What the Pod's own processes say of themselves decides which that is: a Pod
// whose processes lie, lies about its own guest only, as its libvirtd could.
func GuestEnd(libvirtd *os.File) (*End, error) {
	end, count := (*End)(nil), 0
	var failed error
	err := EachQEMU(libvirtd, func(process *os.File, pid int) {
		if count++; count > 1 {
			return
		}
		end, failed = endOf(process, pid)
	})
	if err == nil {
		err = failed
	}
	if err == nil && count != 1 {
		err = fmt.Errorf("%w: there are %d", errNotOne, count)
	}
	if err != nil {
		end.Close()
		return nil, err
	}
	return end, nil
}

func endOf(process *os.File, pid int) (*End, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, fmt.Errorf("watch a process: %w", err)
	}
	end := &End{pidfd: fd}
	// The directory is that of a process. As long as that has files, the number cannot have become another's.
	if Comm(process, ".") != QEMU {
		end.Close()
		return nil, fmt.Errorf("watch a process: %w", fs.ErrNotExist)
	}
	return end, nil
}

// Within waits for the end, and says whether it has come. It has when no thread of the process is left, its memory is freed and its
// files are closed.
func (e *End) Within(limit time.Duration) (bool, error) {
	until := time.Now().Add(limit)
	for {
		left := max(time.Until(until), 0)
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(e.pidfd), Events: unix.POLLIN}}, int(left.Milliseconds()))
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return false, fmt.Errorf("wait for the end of a process: %w", err)
		default:
			return n > 0, nil
		}
	}
}

// Close ends the watch.
func (e *End) Close() {
	if e != nil {
		_ = unix.Close(e.pidfd)
	}
}
