// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package broker

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/broker/podprocess"
	"github.com/vireo-project/vireo/internal/launcherpod/layout"
)

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
	{layout.PostCopyDevice, dynamicMinor},
}

const (
	// miscMajor is the major number of all of them.
	miscMajor = 10
	// dynamicMinor stands for a number that the node's kernel has assigned.
	dynamicMinor = 255
)

// ownDevices makes QEMU's user the owner of the devices in the Pod's /dev. The runtime creates them with the owner that they
// have on the node, where vhost-net and sometimes kvm belong to root. It never changes the owner of the node's own device files.
func (s *Server) ownDevices(pod string, _ none) (task, error) {
	return s.inRoot(s.quick, pod, func(root *podprocess.Root) (answer, error) {
		var errs []error
		for _, d := range guestDevices {
			// The broker's path of the node's device.
			onNode := filepath.Join(s.DevDir, strings.TrimPrefix(d.path, "/dev/"))
			if err := ownDeviceAt(root, d.path, d.minor, onNode); err != nil {
				errs = append(errs, fmt.Errorf("change the owner of %s in the launcher Pod to user %d: %w", d.path, layout.QEMUUser, err))
			}
		}
		return answer{}, errors.Join(errs...)
	}), nil
}

// ownDeviceAt makes QEMU's user the owner of a device of the Pod, if the Pod has it.
func ownDeviceAt(root *podprocess.Root, path string, minor uint32, onNode string) error {
	f, err := root.Open(path, unix.O_PATH)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	return ownDevice(f, minor, onNode)
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
	if stat.Uid == layout.QEMUUser || stat.Mode&othersReadWrite == othersReadWrite {
		return nil
	}
	switch {
	case err == nil && node.Dev == stat.Dev && node.Ino == stat.Ino:
		return errors.New("it is the node's own device file")
	case err != nil && !errors.Is(err, unix.ENOENT):
		return fmt.Errorf("compare it with the node's %s: %w", onNode, err)
	}
	return unix.Fchownat(int(f.Fd()), "", layout.QEMUUser, layout.QEMUUser, unix.AT_EMPTY_PATH)
}
