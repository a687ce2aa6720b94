// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package devicerule lets the processes of a container use a block device of the node, and takes that back. The rules
// are the kernel's:
//
//   - cgroup v1 has a list of rules for each cgroup, in which a rule of this package is recognized by its access: a
//     runtime allows mknod beside reading and writing, this package does not.
//   - cgroup v2 has programs. A program that the runtime has attached is replaced by one that begins with a check for
//     the device and goes on with the instructions of the original, which the kernel returns. So nothing that the
//     runtime has allowed or denied is guessed. The check has a mark, so that it is recognized and removed again.
//
// Nothing is stored elsewhere, so a broker that was restarted finds all rules.
package devicerule

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

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

// Set replaces the rules of this package in the cgroups of a process, or of this one if it is nil, with those for the
// devices, unless they are the same. isPod reports whether an element of a cgroup's path is that of the Pod: the
// cgroups below it are the container's. It is given the current devices.
func Set(process *os.File, isPod func(element string) bool, wanted func(current []Device) ([]Device, error)) error {
	return inHierarchy(process, func(hierarchy *os.File, cgroup podprocess.Cgroup) error {
		paths := pathsOf(cgroup, isPod)
		if paths == nil {
			return fmt.Errorf("find the cgroup of the container: %w: it is in %.512q", ErrNotInPod,
				path.Join(cgroup.Elements...))
		}
		return set(hierarchy, cgroup.V2, paths, wanted)
	})
}

// Sweep does the same in every cgroup of the Pods' containers, in the hierarchy of a process. A Pod's processes need
// not be found, or respond: whatever they do, they stay in these cgroups.
func Sweep(process *os.File, ofPods []string, isPod func(element, pod string) bool,
	wanted func(pod string, current []Device) ([]Device, error)) error {
	if len(ofPods) == 0 {
		return nil
	}
	return inHierarchy(process, func(hierarchy *os.File, own podprocess.Cgroup) (errs error) {
		_ = fs.WalkDir(os.DirFS(podprocess.Reopen(hierarchy)), ".", func(name string, entry fs.DirEntry, err error) error {
			for _, pod := range ofPods {
				inPod := func(element string) bool { return isPod(element, pod) }
				if err == nil && entry.IsDir() && pathsOf(podprocess.Cgroup{Elements: strings.Split(name, "/")}, inPod) != nil {
					err = set(hierarchy, own.V2, []string{name},
						func(current []Device) ([]Device, error) { return wanted(pod, current) })
				}
			}
			if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENODEV) { // It was removed meanwhile.
				errs = errors.Join(errs, err)
			}
			return nil
		})
		return errs
	})
}

func set(hierarchy *os.File, v2 bool, paths []string, wanted func(current []Device) ([]Device, error)) error {
	for _, name := range paths {
		dir, err := podprocess.OpenAt(hierarchy, name, unix.O_RDONLY|unix.O_DIRECTORY,
			podprocess.Beneath|unix.RESOLVE_NO_XDEV)
		if err != nil {
			return fmt.Errorf("open the cgroup of the container: %w", err)
		}
		defer func() { _ = dir.Close() }()
		var t table = list{dir}
		if v2 {
			t = programs{dir}
		}
		devices, err := t.added()
		if err == nil {
			devices, err = wanted(devices)
		}
		if err == nil {
			err = t.set(devices)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// inHierarchy calls a function with the cgroup of a process that has device rules, and the root of its hierarchy. It is
// that of the node, and not what a container sees of it.
func inHierarchy(process *os.File, do func(hierarchy *os.File, cgroup podprocess.Cgroup) error) error {
	if process == nil {
		self, err := os.Open("/proc/self")
		if err != nil {
			return err
		}
		defer func() { _ = self.Close() }()
		process = self
	}
	return podprocess.OnDisposableThread(func() error {
		// A security module may deny access to the node's processes. Then the paths must be within the broker's own
		// namespace, as they are if the runtime makes none.
		if node, err := os.Open("/proc/1/ns/cgroup"); err == nil {
			err = unix.Setns(int(node.Fd()), unix.CLONE_NEWCGROUP)
			if err := errors.Join(err, node.Close()); err != nil {
				return fmt.Errorf("enter the node's cgroup namespace: %w", err)
			}
		}
		all, err := podprocess.Cgroups(process)
		if err != nil {
			return err
		}
		found, kind := withDevices(all), "cgroup"
		if found.V2 {
			kind, found.Controllers = "cgroup2", nil
		}
		hierarchy, err := podprocess.MountKernelFS(kind, found.Controllers...)
		if err != nil {
			return err
		}
		defer func() { _ = hierarchy.Close() }()
		return do(hierarchy, found)
	})
}

// ErrNotInPod means that a process has no cgroup below that of its Pod.
var ErrNotInPod = errors.New("the process is in no cgroup of a container of the Pod")

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

// pathsOf returns the paths of a container's cgroups in their hierarchy, from the outermost to that of a process.
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

// Device is a block device, by its numbers.
type Device struct{ Major, Minor uint32 }

// rule is a rule of this package. It differs from a runtime's rules by what it permits: those for a device permit mknod
// ("m") or do not permit writing.
const rule = "b %d:%d rw"

// list is the list of rules of a cgroup of version 1, given its directory.
// Source: Linux Documentation/admin-guide/cgroup-v1/devices.rst
type list struct{ dir *os.File }

func (l list) added() ([]Device, error) {
	text, err := podprocess.Read(l.dir, "devices.list")
	var devices []Device
	for line := range strings.Lines(text) {
		var d Device
		// The kernel's text of the rule must be the same, as the numbers alone could be the beginning of another one.
		if _, err := fmt.Sscanf(line, rule, &d.Major, &d.Minor); err == nil &&
			line == fmt.Sprintf(rule+"\n", d.Major, d.Minor) {
			devices = append(devices, d)
		}
	}
	return devices, err
}

func (l list) set(want []Device) error {
	current, err := l.added()
	errs := []error{err}
	for _, d := range current {
		if !slices.Contains(want, d) {
			errs = append(errs, l.write("devices.deny", d))
		}
	}
	for _, d := range want {
		if !slices.Contains(current, d) {
			errs = append(errs, l.write("devices.allow", d))
		}
	}
	return errors.Join(errs...)
}

func (l list) write(name string, d Device) error {
	f, err := podprocess.OpenAt(l.dir, name, unix.O_WRONLY, podprocess.Beneath)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(f, rule, d.Major, d.Minor)
	return errors.Join(err, f.Close())
}
