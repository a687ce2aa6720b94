// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package devicerule

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/broker/podprocess"
)

// table is the device rules of a cgroup.
type table interface {
	// added returns the devices of the rules of this package.
	added() ([]Device, error)
	// set makes them those for other devices.
	set([]Device) error
}

// Set makes the rules of this package in the cgroups of a process those for the devices, if the current ones differ. isPod reports
// whether an element of a cgroup's path is that of the Pod: the cgroups below it are the container's. It is given the current devices.
func Set(process *os.File, isPod func(element string) bool, wanted func(current []Device) ([]Device, error)) error {
	return podprocess.OnDisposableThread(func() error {
		hierarchy, cgroup, err := cgroupOf(process, isPod)
		if err != nil {
			return fmt.Errorf("find the cgroup of the container: %w", err)
		}
		defer func() { _ = hierarchy.Close() }()
		var tables []table
		var current []Device
		for _, name := range pathsOf(cgroup, isPod) {
			dir, err := podprocess.OpenAt(hierarchy, name, unix.O_RDONLY|unix.O_DIRECTORY, podprocess.Beneath|unix.RESOLVE_NO_XDEV)
			if err != nil {
				return fmt.Errorf("open the cgroup of the container: %w", err)
			}
			defer func() { _ = dir.Close() }()
			var t table = list{dir}
			if cgroup.V2 {
				t = programs{dir}
			}
			added, err := t.added()
			if err != nil {
				return err
			}
			tables = append(tables, t)
			current = append(current, slices.DeleteFunc(added, func(d Device) bool { return slices.Contains(current, d) })...)
		}
		want, err := wanted(current)
		for _, t := range tables {
			if err == nil {
				err = t.set(want)
			}
		}
		return err
	})
}

// cgroupOf returns the cgroup of a process that has device rules, and the root of its hierarchy. It is that of the node, and not
// what a container sees of it. It moves the thread to the node's cgroup namespace.
func cgroupOf(process *os.File, isPod func(string) bool) (*os.File, podprocess.Cgroup, error) {
	// A security module may deny access to the node's processes. Then the paths must be within the broker's own namespace, as they are if
	// the runtime makes none.
	if node, err := os.Open("/proc/1/ns/cgroup"); err == nil {
		err = unix.Setns(int(node.Fd()), unix.CLONE_NEWCGROUP)
		if err := errors.Join(err, node.Close()); err != nil {
			return nil, podprocess.Cgroup{}, fmt.Errorf("enter the node's cgroup namespace: %w", err)
		}
	}
	all, err := podprocess.Cgroups(process)
	if err != nil {
		return nil, podprocess.Cgroup{}, err
	}
	found := withDevices(all)
	if pathsOf(found, isPod) == nil {
		return nil, found, fmt.Errorf("%w: it is in %.512q", errNotInPod, path.Join(found.Elements...))
	}
	if found.V2 {
		hierarchy, err := podprocess.MountKernelFS("cgroup2")
		return hierarchy, found, err
	}
	hierarchy, err := podprocess.MountKernelFS("cgroup", found.Controllers...)
	return hierarchy, found, err
}

// errNotInPod means that a process has no cgroup below that of its Pod.
var errNotInPod = errors.New("the process is in no cgroup of a container of the Pod")

// withDevices returns the cgroup that has device rules: that of version 1 if the node has their controller there.
func withDevices(cgroups []podprocess.Cgroup) (found podprocess.Cgroup) {
	for _, cgroup := range cgroups {
		if slices.Contains(cgroup.Controllers, "devices") {
			return cgroup
		}
		if cgroup.V2 {
			found = cgroup
		}
	}
	return found
}

// pathsOf returns the paths of a container's cgroups in their hierarchy, given that of a process: from the outermost to that one.
func pathsOf(cgroup podprocess.Cgroup, isPod func(string) bool) (paths []string) {
	pod := slices.IndexFunc(cgroup.Elements, isPod)
	if pod < 0 || slices.Contains(cgroup.Elements, "..") {
		return nil
	}
	for i := pod + 2; i <= len(cgroup.Elements); i++ {
		paths = append(paths, path.Join(cgroup.Elements[:i]...))
	}
	return paths
}
