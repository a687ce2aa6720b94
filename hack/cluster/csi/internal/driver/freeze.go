// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package driver

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/hack/cluster/csi/internal/loop"
)

// The ioctls that freeze and thaw a filesystem: include/uapi/linux/fs.h of Linux.
const (
	fiFreeze = 0xc0045877
	fiThaw   = 0xc0045878
)

// frozen calls a function while nothing can write to the filesystems of volumes. If this process is killed meanwhile,
// they stay frozen until the next process thaws them. Block volumes are not frozen, because the kernel cannot freeze
// them.
func (c *Controller) frozen(ids []string, call func() error) (err error) {
	if len(ids) == 0 {
		return call()
	}
	thaw, err := c.freeze(ids[0])
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, thaw()) }()
	return c.frozen(ids[1:], call)
}

// freeze stops writes to the filesystem of a volume until the returned function is called. A filesystem that is not
// mounted cannot be mounted until then.
func (c *Controller) freeze(id string) (thaw func() error, err error) {
	device, err := c.filesystemDevice(id)
	if err != nil {
		return nil, err
	}
	if device == "" {
		return func() error { return nil }, nil
	}
	file, mounted, err := hold(device)
	if err != nil {
		return nil, err
	}
	if !mounted {
		return file.Close, nil
	}
	if err := unix.IoctlSetInt(int(file.Fd()), fiFreeze, 0); err != nil {
		return nil, errors.Join(fmt.Errorf("freeze the filesystem of volume %s: %w", id, err), file.Close())
	}
	return func() error {
		err := unix.IoctlSetInt(int(file.Fd()), fiThaw, 0)
		if err != nil {
			err = fmt.Errorf("thaw the filesystem of volume %s: %w", id, err)
		}
		return errors.Join(err, file.Close())
	}, nil
}

// thawAfterKill thaws the filesystem of a volume if a process that had frozen it was killed.
func (c *Controller) thawAfterKill(id string) error {
	device, err := c.filesystemDevice(id)
	if err != nil || device == "" {
		return err
	}
	file, mounted, err := hold(device)
	if errors.Is(err, unix.EBUSY) {
		return nil // a node has mounted it read-only, so there was nothing to freeze
	}
	if err != nil {
		return err
	}
	if mounted {
		// EINVAL means that the filesystem is not frozen.
		if err = unix.IoctlSetInt(int(file.Fd()), fiThaw, 0); errors.Is(err, unix.EINVAL) {
			err = nil
		}
	}
	return errors.Join(err, file.Close())
}

// hold opens the root of the filesystem that is mounted from a device. If none is, it opens the device, which then
// cannot be mounted.
func hold(device string) (file *os.File, mounted bool, err error) {
	// A mounted filesystem has its device exclusively.
	file, err = os.OpenFile(device, os.O_RDONLY|os.O_EXCL, 0)
	if err == nil {
		return file, false, nil
	}
	if !errors.Is(err, unix.EBUSY) {
		return nil, false, fmt.Errorf("open the device of a volume: %w", err)
	}
	file, err = openFilesystem(device)
	return file, true, err
}

// filesystemDevice returns the device of a volume with a filesystem, or an empty path if the volume has no device or no
// filesystem.
func (c *Controller) filesystemDevice(id string) (string, error) {
	v, err := c.pool.Volumes.Get(id)
	if err != nil {
		return "", found(err, "volume", id)
	}
	if v.Record.Block {
		return "", nil
	}
	disk, err := c.pool.Volumes.Open(id)
	if err != nil {
		return "", found(err, "volume", id)
	}
	device, err := loop.Find(disk)
	return device, errors.Join(err, disk.Close())
}

// openFilesystem opens the root of the filesystem that nodes have mounted from a device. Their mounts are in other
// namespaces, so it makes its own mount, which has no path and ends when the returned file is closed.
func openFilesystem(device string) (*os.File, error) {
	settings, err := unix.Fsopen(filesystem, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", filesystem, err)
	}
	defer func() { _ = unix.Close(settings) }()
	if err := unix.FsconfigSetString(settings, "source", device); err != nil {
		return nil, fmt.Errorf("choose %s: %w", device, err)
	}
	if err := unix.FsconfigCreate(settings); err != nil {
		return nil, fmt.Errorf("open the filesystem of %s: %w", device, err)
	}
	mount, err := unix.Fsmount(settings, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("mount the filesystem of %s: %w", device, err)
	}
	defer func() { _ = unix.Close(mount) }()
	root, err := unix.Openat(mount, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open the root of %s: %w", device, err)
	}
	return os.NewFile(uintptr(root), device), nil
}
