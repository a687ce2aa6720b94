// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package facts

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/podprocess"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// inspectTimeout bounds the inspection of a file, which may be on network storage that hangs.
const inspectTimeout = 5 * time.Second

// PodFiles inspects a launcher Pod's files through the root directory of its libvirtd.
type PodFiles struct {
	// Process is the process of libvirtd.
	Process *hypervisor.Process
	// NodeDev is the node's /dev in the agent's mount namespace.
	NodeDev string
}

// onNode returns the agent's path of a device of the node.
func (p PodFiles) onNode(device string) string {
	return filepath.Join(p.NodeDev, strings.TrimPrefix(device, "/dev/"))
}

// HasDevice reports whether the Pod has a character device at a path.
func (p PodFiles) HasDevice(ctx context.Context, path string) bool {
	return p.inspect(ctx, path, func(f *os.File) bool {
		info, err := f.Stat()
		return err == nil && info.Mode()&os.ModeCharDevice != 0
	})
}

// DirectIO reports whether a regular file of the Pod can be opened with O_DIRECT. It does not open devices, as this can have side
// effects.
func (p PodFiles) DirectIO(ctx context.Context, path string) bool {
	return p.inspect(ctx, path, func(f *os.File) bool {
		info, err := f.Stat()
		if err != nil || !info.Mode().IsRegular() {
			return false
		}
		fd, err := unix.Open(procFD(f), unix.O_RDONLY|unix.O_DIRECT|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			return false
		}
		return unix.Close(fd) == nil
	})
}

// inspect opens a path of the Pod with O_PATH and calls check. It returns false if that takes too long.
func (p PodFiles) inspect(ctx context.Context, path string, check func(*os.File) bool) bool {
	root, err := podprocess.OpenRoot(p.Process.Dir)
	if err != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, inspectTimeout)
	defer cancel()
	result := make(chan bool, 1)
	err = root.Do(ctx, p.Process.Pod, func(root *podprocess.Root) error {
		f, err := root.Open(path, unix.O_PATH)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		result <- check(f)
		return nil
	})
	return err == nil && <-result
}

// procFD returns a path that reopens a descriptor's inode.
func procFD(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }

// guestDevices are the devices that QEMU opens in the Pod, with the minor numbers that identify them.
// Source: Linux Documentation/admin-guide/devices.txt
var guestDevices = []struct {
	path  string
	minor uint32
}{
	{"/dev/kvm", 232},
	{"/dev/net/tun", 200},
	{"/dev/vhost-net", 238},
	{"/dev/vhost-vsock", 241},
	{launcherpod.PostCopyDevice, dynamicMinor},
}

const (
	// miscMajor is the major number of all of them.
	miscMajor = 10
	// dynamicMinor stands for a number that the node's kernel has assigned.
	dynamicMinor = 255
)

// OwnDevices makes QEMU's user the owner of the devices in the Pod's /dev. The runtime creates them with the owner that they
// have on the node, where vhost-net and sometimes kvm belong to root. It never changes the owner of the node's own device files.
func (p PodFiles) OwnDevices(ctx context.Context) error {
	var errs []error
	for _, d := range guestDevices {
		failed := make(chan error, 1)
		p.inspect(ctx, d.path, func(f *os.File) bool {
			failed <- ownDevice(f, d.minor, p.onNode(d.path))
			return true
		})
		select {
		case err := <-failed:
			if err != nil {
				errs = append(errs, fmt.Errorf("change the owner of %s in the launcher Pod to user %d: %w", d.path, launcherpod.QEMUUser, err))
			}
		default:
			// The Pod has no such device.
		}
	}
	return errors.Join(errs...)
}

// ownDevice makes QEMU's user the owner of a device file. It returns an error if the file is the node's own, and does nothing if it is
// another device.
func ownDevice(f *os.File, minor uint32, onNode string) error {
	var stat unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &stat); err != nil {
		return err
	}
	var node unix.Stat_t
	err := unix.Stat(onNode, &node)
	if minor == dynamicMinor && err == nil {
		minor = unix.Minor(node.Rdev)
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFCHR || unix.Major(stat.Rdev) != miscMajor || unix.Minor(stat.Rdev) != minor {
		return nil
	}
	const othersReadWrite = 0o006
	if stat.Uid == launcherpod.QEMUUser || stat.Mode&othersReadWrite == othersReadWrite {
		return nil
	}
	switch {
	case err == nil && node.Dev == stat.Dev && node.Ino == stat.Ino:
		return errors.New("it is the node's own device file")
	case err != nil && !errors.Is(err, unix.ENOENT):
		return fmt.Errorf("compare it with the node's %s: %w", onNode, err)
	}
	return unix.Fchownat(int(f.Fd()), "", launcherpod.QEMUUser, launcherpod.QEMUUser, unix.AT_EMPTY_PATH)
}
