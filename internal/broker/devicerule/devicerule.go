// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package devicerule

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/broker/podprocess"
)

// maxFile is the limit for a file of /proc or of a cgroup in bytes.
const maxFile = 1 << 20

// table is the device rules of a cgroup.
type table interface {
	// added returns the devices of the rules of this package.
	added() ([]Device, error)
	// allow adds a rule, and deny removes it.
	allow(Device) error
	deny(Device) error
}

// Set makes the rules of this package in the cgroups of a process those for the devices, if the current ones differ. isPod reports
// whether an element of a cgroup's path is that of the Pod: the cgroups below it are the container's. It is given the current devices.
func Set(process *os.File, isPod func(element string) bool, wanted func(current []Device) ([]Device, error)) error {
	return podprocess.OnDisposableThread(func() error {
		hierarchy, cgroups, err := cgroupsOf(process, isPod)
		if err != nil {
			return fmt.Errorf("find the cgroup of the container: %w", err)
		}
		defer func() { _ = hierarchy.Close() }()
		tables := make([]table, len(cgroups.paths))
		var current []Device
		for i, name := range cgroups.paths {
			dir, err := openBeneath(hierarchy, name, unix.O_RDONLY|unix.O_DIRECTORY)
			if err != nil {
				return fmt.Errorf("open the cgroup of the container: %w", err)
			}
			defer func() { _ = dir.Close() }()
			tables[i] = list{dir}
			if cgroups.v2 {
				tables[i] = programs{dir}
			}
			added, err := tables[i].added()
			if err != nil {
				return err
			}
			current = append(current, added...)
		}
		want, err := wanted(current)
		if err != nil {
			return err
		}
		for _, t := range tables {
			if err := change(t, want); err != nil {
				return err
			}
		}
		return nil
	})
}

func change(t table, want []Device) error {
	current, err := t.added()
	if err != nil {
		return err
	}
	var errs []error
	for _, device := range current {
		if !slices.Contains(want, device) {
			errs = append(errs, t.deny(device))
		}
	}
	for _, device := range want {
		if !slices.Contains(current, device) {
			errs = append(errs, t.allow(device))
		}
	}
	return errors.Join(errs...)
}

// cgroups are the cgroups of a container.
type cgroups struct {
	v2          bool
	controllers []string
	// paths are relative to the hierarchy, from the outermost to that of the process.
	paths []string
}

// cgroupsOf returns the cgroups of a process that have device rules, and the root of their hierarchy. It is that of the node, and not
// what a container sees of it. It moves the thread to the node's cgroup namespace.
func cgroupsOf(process *os.File, isPod func(string) bool) (*os.File, cgroups, error) {
	// A security module may deny access to the node's processes. Then the paths must be within the broker's own namespace, as they are if
	// the runtime makes none.
	if node, err := os.Open("/proc/1/ns/cgroup"); err == nil {
		err = unix.Setns(int(node.Fd()), unix.CLONE_NEWCGROUP)
		if err := errors.Join(err, node.Close()); err != nil {
			return nil, cgroups{}, fmt.Errorf("enter the node's cgroup namespace: %w", err)
		}
	}
	f, err := podprocess.OpenIn(process, "cgroup")
	if err != nil {
		return nil, cgroups{}, err
	}
	defer func() { _ = f.Close() }()
	found, err := parseCgroups(io.LimitReader(f, maxFile), isPod)
	if err != nil {
		return nil, cgroups{}, err
	}
	hierarchy, err := mountHierarchy(found)
	return hierarchy, found, err
}

// errNotInPod means that a process has no cgroup below that of its Pod.
var errNotInPod = errors.New("the process is in no cgroup of a container of the Pod")

// parseCgroups parses a file such as /proc/1/cgroup. Device rules are those of version 1 if the node has its controller there.
func parseCgroups(r io.Reader, isPod func(string) bool) (cgroups, error) {
	var found cgroups
	var in string
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		// <hierarchy>:<controllers>:<path>
		parts := strings.SplitN(lines.Text(), ":", 3)
		if len(parts) != 3 {
			continue
		}
		controllers := strings.Split(parts[1], ",")
		switch {
		case slices.Contains(controllers, "devices"):
			found, in = cgroups{controllers: controllers}, parts[2]
		case parts[0] == "0" && found.controllers == nil:
			found, in = cgroups{v2: true}, parts[2]
		}
	}
	if err := lines.Err(); err != nil {
		return cgroups{}, err
	}
	elements := strings.Split(strings.Trim(in, "/"), "/")
	pod := slices.IndexFunc(elements, isPod)
	if pod < 0 || pod == len(elements)-1 || slices.Contains(elements, "..") {
		return cgroups{}, fmt.Errorf("%w: it is in %.512q", errNotInPod, in)
	}
	for i := pod + 2; i <= len(elements); i++ {
		found.paths = append(found.paths, path.Join(elements[:i]...))
	}
	return found, nil
}

// mountHierarchy mounts the hierarchy of cgroups, nowhere: it is gone when the descriptor is closed. A container has its own part of it
// only, which its runtime mounts read-only.
func mountHierarchy(of cgroups) (*os.File, error) {
	kind := "cgroup"
	if of.v2 {
		kind = "cgroup2"
	}
	fs, err := unix.Fsopen(kind, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("mount the cgroups of the node: %w", err)
	}
	defer func() { _ = unix.Close(fs) }()
	for _, controller := range of.controllers {
		if err := unix.FsconfigSetFlag(fs, controller); err != nil {
			return nil, fmt.Errorf("mount the cgroups of the node: %s: %w", controller, err)
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return nil, fmt.Errorf("mount the cgroups of the node: %w", err)
	}
	mount, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return nil, fmt.Errorf("mount the cgroups of the node: %w", err)
	}
	return os.NewFile(uintptr(mount), kind), nil
}

func openBeneath(dir *os.File, name string, flags int) (*os.File, error) {
	fd, err := unix.Openat2(int(dir.Fd()), name, &unix.OpenHow{
		Flags:   uint64(flags) | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	})
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}
