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

	"github.com/vireo-project/vireo/internal/handler/hypervisor"
	"github.com/vireo-project/vireo/internal/handler/podprocess"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// inspectTimeout bounds the inspection of a file: it may lie on network storage that hangs.
const inspectTimeout = 5 * time.Second

// PodFiles looks at a launcher Pod's files through the root directory of its libvirtd.
type PodFiles struct {
	// Process is libvirtd, found through its socket.
	Process *hypervisor.Process
	// NodeDev is the node's /dev as the agent sees it.
	NodeDev string
}

// onNode is where a device of the node is seen by the agent.
func (p PodFiles) onNode(device string) string {
	return filepath.Join(p.NodeDev, strings.TrimPrefix(device, "/dev/"))
}

// HasDevice says that the Pod has a character device at a path.
func (p PodFiles) HasDevice(ctx context.Context, path string) bool {
	return p.inspect(ctx, path, func(f *os.File) bool {
		info, err := f.Stat()
		return err == nil && info.Mode()&os.ModeCharDevice != 0
	})
}

// DirectIO says that a regular file of the Pod can be opened past the page cache. Devices are not opened, since
// opening some of them does something.
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

// inspect opens a path as the Pod sees it, as a mere reference, and asks a question about it. One that takes too
// long is answered with no.
func (p PodFiles) inspect(ctx context.Context, path string, ask func(*os.File) bool) bool {
	root, err := podprocess.OpenRoot(p.Process.Dir)
	if err != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, inspectTimeout)
	defer cancel()
	answer := make(chan bool, 1)
	err = root.Do(ctx, p.Process.Pod, func(root *podprocess.Root) error {
		f, err := root.Open(path, unix.O_PATH)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		answer <- ask(f)
		return nil
	})
	return err == nil && <-answer
}

// procFD is the path that opens a descriptor's inode anew.
func procFD(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }

// guestDevices are the devices that QEMU opens in the Pod, with the numbers that make sure that they are what they
// are called. Source: Linux Documentation/admin-guide/devices.txt
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
	// dynamicMinor stands for a number that the node's kernel has chosen.
	dynamicMinor = 255
)

// ClaimDevices gives the devices that the Pod was allotted to the user that QEMU runs as. The runtime makes the nodes
// in the Pod's own /dev as they are on the host, where vhost-net and sometimes kvm belong to root.
// The node's own device files never change hands, should a process see those instead.
func (p PodFiles) ClaimDevices(ctx context.Context) error {
	var errs []error
	for _, d := range guestDevices {
		failed := make(chan error, 1)
		p.inspect(ctx, d.path, func(f *os.File) bool {
			failed <- claim(f, d.minor, p.onNode(d.path))
			return true
		})
		select {
		case err := <-failed:
			if err != nil {
				errs = append(errs, fmt.Errorf("give %s of the launcher Pod to user %d: %w", d.path, launcherpod.QEMUUser, err))
			}
		default:
			// The Pod has no such device.
		}
	}
	return errors.Join(errs...)
}

// claim gives a device file away, unless it is the node's own or something else than its path says.
func claim(f *os.File, minor uint32, onNode string) error {
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
