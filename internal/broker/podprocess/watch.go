// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podprocess

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// errNoSingleQEMU means that a launcher Pod has no process with QEMU's name, or several.
var errNoSingleQEMU = errors.New("not one process of the launcher Pod is QEMU's")

// WatchGuest returns a pidfd of a launcher Pod's QEMU, which it finds by its name: it becomes readable when all threads of the process
// have exited, its memory is freed and its files are closed. The Pod's processes can fake the name, but this affects their own guest
// only, as their libvirtd could. The descriptor gives its owner no power over the process that the owner does not have anyway.
func WatchGuest(libvirtd *os.File) (*os.File, error) {
	w, count := (*os.File)(nil), 0
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
	if err != nil && w != nil {
		_ = w.Close()
	}
	if err != nil {
		return nil, err
	}
	return w, nil
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
