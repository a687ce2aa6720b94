// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package loop attaches files as block devices. A file has at most one device, so that all nodes share its page cache.
package loop

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Find returns the path of the device that is attached to a file, or an empty path.
func Find(file *os.File) (string, error) {
	device, err := find(file)
	if err != nil || device == nil {
		return "", err
	}
	return device.Name(), device.Close()
}

// Attach attaches a file as a device, unless it already is.
func Attach(file *os.File) (string, error) {
	device, err := find(file)
	if err != nil {
		return "", err
	}
	if device != nil {
		err := keep(device)
		if err := errors.Join(err, device.Close()); err != nil {
			return "", err
		}
		return device.Name(), nil
	}
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return "", fmt.Errorf("open the control of loop devices: %w", err)
	}
	defer func() { _ = control.Close() }()
	for {
		number, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return "", fmt.Errorf("find a free loop device: %w", err)
		}
		path := fmt.Sprintf("/dev/loop%d", number)
		err = configure(path, file)
		if errors.Is(err, unix.EBUSY) {
			continue // another process was faster
		}
		return path, err
	}
}

func configure(path string, file *os.File) error {
	device, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("open a loop device: %w", err)
	}
	settings := unix.LoopConfig{Fd: uint32(file.Fd())}
	// The last byte stays zero. The name is for users, and for the cluster, which finds its devices by the name's prefix.
	copy(settings.Info.File_name[:len(settings.Info.File_name)-1], file.Name())
	if err := unix.IoctlLoopConfigure(int(device.Fd()), &settings); err != nil {
		return errors.Join(fmt.Errorf("attach %s to %s: %w", file.Name(), path, err), device.Close())
	}
	return device.Close()
}

// keep cancels an earlier request to detach a device when its last user closes it.
func keep(device *os.File) error {
	info, err := unix.IoctlLoopGetStatus64(int(device.Fd()))
	if err != nil {
		return fmt.Errorf("read the state of %s: %w", device.Name(), err)
	}
	if info.Flags&unix.LO_FLAGS_AUTOCLEAR == 0 {
		return nil
	}
	info.Flags &^= unix.LO_FLAGS_AUTOCLEAR
	if err := unix.IoctlLoopSetStatus64(int(device.Fd()), info); err != nil {
		return fmt.Errorf("keep %s attached: %w", device.Name(), err)
	}
	return nil
}

// Resize changes the size of a file's device, if there is one, to that of the file. Its users observe the change at
// once.
func Resize(file *os.File) error {
	device, err := find(file)
	if err != nil || device == nil {
		return err
	}
	if err := unix.IoctlSetInt(int(device.Fd()), unix.LOOP_SET_CAPACITY, 0); err != nil {
		return errors.Join(fmt.Errorf("resize %s: %w", device.Name(), err), device.Close())
	}
	return device.Close()
}

// Flush writes the page cache of a file's device, if there is one, to the file.
func Flush(file *os.File) error {
	device, err := find(file)
	if err != nil || device == nil {
		return err
	}
	if err := errors.Join(device.Sync(), device.Close()); err != nil {
		return fmt.Errorf("flush a loop device: %w", err)
	}
	return nil
}

// Detach detaches a file's device, if there is one: at once, or when its last user closes it.
func Detach(file *os.File) error {
	device, err := find(file)
	if err != nil || device == nil {
		return err
	}
	if err := unix.IoctlSetInt(int(device.Fd()), unix.LOOP_CLR_FD, 0); err != nil && !errors.Is(err, unix.ENXIO) {
		return errors.Join(fmt.Errorf("detach %s: %w", device.Name(), err), device.Close())
	}
	return device.Close()
}

// find opens the device that is attached to a file. It returns nil if there is none.
func find(file *os.File) (*os.File, error) {
	var stat unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &stat); err != nil {
		return nil, fmt.Errorf("read the properties of %s: %w", file.Name(), err)
	}
	paths, err := filepath.Glob("/dev/loop[0-9]*")
	if err != nil {
		return nil, fmt.Errorf("list the loop devices: %w", err)
	}
	for _, path := range paths {
		device, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENXIO) {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, fmt.Errorf("open a loop device: %w", err)
		}
		info, err := unix.IoctlLoopGetStatus64(int(device.Fd()))
		if err == nil && info.Device == stat.Dev && info.Inode == stat.Ino {
			return device, nil
		}
		_ = device.Close()
		if err != nil && !errors.Is(err, unix.ENXIO) && !errors.Is(err, unix.ENOTTY) {
			return nil, fmt.Errorf("read which file %s is attached to: %w", path, err)
		}
	}
	return nil, nil
}
