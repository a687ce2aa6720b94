// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podprocess

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Cgroup is a cgroup of a process in one hierarchy.
type Cgroup struct {
	// V2 means that the hierarchy is that of version 2, which has no list of Controllers.
	V2          bool
	Controllers []string
	// Elements are those of the cgroup's path.
	Elements []string
}

// Cgroups returns the cgroups of a process, given its directory in /proc.
func Cgroups(process *os.File) ([]Cgroup, error) {
	text, err := Read(process, "cgroup")
	return parseCgroups(text), err
}

func parseCgroups(text string) (cgroups []Cgroup) {
	for line := range strings.Lines(text) {
		// <hierarchy>:<controllers>:<path>
		if parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3); len(parts) == 3 {
			cgroups = append(cgroups, Cgroup{parts[0] == "0", strings.Split(parts[1], ","), strings.Split(strings.Trim(parts[2], "/"), "/")})
		}
	}
	return cgroups
}

// MountKernelFS mounts a file system of the kernel with flags, nowhere: it is gone when the descriptor is closed. Those of a container are
// mounted read-only, and not complete.
func MountKernelFS(kind string, flags ...string) (*os.File, error) {
	fs, err := unix.Fsopen(kind, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("open file system %s: %w", kind, err)
	}
	defer func() { _ = unix.Close(fs) }()
	for _, flag := range flags {
		if err := unix.FsconfigSetFlag(fs, flag); err != nil {
			return nil, fmt.Errorf("mount %s with %s: %w", kind, flag, err)
		}
	}
	mount := -1
	if err = unix.FsconfigCreate(fs); err == nil {
		mount, err = unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
	}
	if err != nil {
		return nil, fmt.Errorf("mount %s: %w", kind, err)
	}
	return os.NewFile(uintptr(mount), kind), nil
}
