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
	"github.com/vireo-project/vireo/internal/broker/server"
	"github.com/vireo-project/vireo/internal/launcherpod/layout"
)

// guestDevices are the devices that QEMU opens in the Pod.
var guestDevices = []string{"/dev/kvm", "/dev/net/tun", "/dev/vhost-net", "/dev/vhost-vsock", layout.PostCopyDevice}

// ownDevices makes QEMU's user the owner of the devices in the Pod's /dev. The runtime creates them with the owner that they
// have on the node, where vhost-net and sometimes kvm belong to root. It never changes the owner of the node's own device files.
func (b *Broker) ownDevices(pod string, _ server.None) (server.Task, error) {
	return b.inRoot(b.quick, pod, func(root *podprocess.Root) (server.Answer, error) {
		var errs []error
		for _, device := range guestDevices {
			// The broker's path of the node's device.
			onNode := filepath.Join(b.DevDir, strings.TrimPrefix(device, "/dev/"))
			if err := ownDeviceAt(root, device, onNode); err != nil {
				errs = append(errs, fmt.Errorf("change the owner of %s in the launcher Pod to user %d: %w", device, layout.QEMUUser, err))
			}
		}
		return server.Answer{}, errors.Join(errs...)
	}), nil
}

// ownDeviceAt makes QEMU's user the owner of a device of the Pod, if the Pod has it.
func ownDeviceAt(root *podprocess.Root, path, onNode string) error {
	f, err := root.Open(path, unix.O_PATH)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	return ownDevice(f, onNode)
}

// ownDevice makes QEMU's user the owner of a device file of the Pod. It returns an error if the file is the node's own, and does nothing
// if it is another device than the node's. The kubelet allocates a device only if the node has it.
func ownDevice(f *os.File, onNode string) error {
	var node, stat unix.Stat_t
	err := unix.Stat(onNode, &node)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err := errors.Join(err, unix.Fstat(int(f.Fd()), &stat)); err != nil {
		return fmt.Errorf("compare it with the node's %s: %w", onNode, err)
	}
	const othersReadWrite = 0o006
	isDevice := stat.Mode&unix.S_IFMT == unix.S_IFCHR && node.Mode&unix.S_IFMT == unix.S_IFCHR && stat.Rdev == node.Rdev
	if !isDevice || stat.Uid == layout.QEMUUser || stat.Mode&othersReadWrite == othersReadWrite {
		return nil
	}
	if node.Dev == stat.Dev && node.Ino == stat.Ino {
		return errors.New("it is the node's own device file")
	}
	return unix.Fchownat(int(f.Fd()), "", layout.QEMUUser, layout.QEMUUser, unix.AT_EMPTY_PATH)
}
