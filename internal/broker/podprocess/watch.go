// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podprocess

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// errNoSingleQEMU means that a launcher Pod has no process with QEMU's name, or several.
var errNoSingleQEMU = errors.New("none or several processes of the launcher Pod are QEMU's")

// WatchGuest returns a pidfd of a launcher Pod's QEMU, which it finds by its name: it becomes readable when all threads of the process
// have exited, its memory is freed and its files are closed. The Pod's processes can fake the name, but this affects their own guest
// only, as their libvirtd could. The descriptor gives its owner no power over the process that the owner does not have anyway.
func WatchGuest(libvirtd *os.File) (*os.File, error) {
	var found []*os.File
	var failed error
	err := EachQEMU(libvirtd, func(process *os.File, pid int) {
		if len(found) < 2 { // The Pod may have thousands of processes with that name, and each takes a descriptor.
			w, err := watchProcess(process, pid)
			found, failed = append(found, w), errors.Join(failed, err)
		}
	})
	if err = errors.Join(err, failed); err == nil && len(found) == 1 {
		return found[0], nil
	}
	for _, w := range found {
		_ = w.Close() // which does nothing with nil
	}
	return nil, cmp.Or(err, errNoSingleQEMU)
}

func watchProcess(process *os.File, pid int) (*os.File, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, fmt.Errorf("watch a process: %w", err)
	}
	w := os.NewFile(uintptr(fd), "pidfd")
	// The directory always refers to the original process. As long as it has files, the pid has not been reused.
	if Comm(process, ".") != QEMU {
		_ = w.Close()
		return nil, fmt.Errorf("watch a process: %w", fs.ErrNotExist)
	}
	return w, nil
}
