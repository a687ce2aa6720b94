// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package loop attaches files as block devices and finds those that belong to
// the cluster: its own, and those that the kubelet creates on top of them as locks.
package loop

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/hack/cluster/internal/process"
)

// Attach attaches the file as a device, unless it already is.
func Attach(ctx context.Context, file string) (string, error) {
	devices, err := of(ctx, file)
	if err != nil {
		return "", err
	}
	if len(devices) > 0 {
		return devices[0], nil
	}
	return process.Run(ctx, "losetup", "--find", "--show", "--nooverlap", file)
}

// Resize changes the size of the file's devices, and of those that the kubelet stacked on them, to that of the file.
func Resize(ctx context.Context, file string) error {
	all, err := list()
	if err != nil {
		return err
	}
	upper, lower := ours(all, filepath.Dir(file))
	attached, err := of(ctx, file)
	if err != nil {
		return err
	}
	lower = slices.DeleteFunc(lower, func(path string) bool { return !slices.Contains(attached, path) })
	// Lower devices are resized first, because a stacked device has the size of the one below it. A device with another
	// backing file keeps its size.
	for _, path := range append(lower, upper...) {
		if _, err := process.Run(ctx, "losetup", "--set-capacity", path); err != nil {
			return err
		}
	}
	return nil
}

// Detach removes the file's devices.
func Detach(ctx context.Context, file string) error {
	devices, err := of(ctx, file)
	if err != nil {
		return err
	}
	for _, device := range devices {
		if _, err := process.Run(ctx, "losetup", "--detach", device); err != nil {
			return err
		}
	}
	return nil
}

func of(ctx context.Context, file string) ([]string, error) {
	output, err := process.Run(ctx, "losetup", "--associated", file, "--noheadings", "--output", "NAME")
	if err != nil {
		return nil, err
	}
	return strings.Fields(output), nil
}

// device is a loop device and its backing file.
type device struct {
	path string
	// number of the device itself.
	number uint64
	// file is the backing file's name as it was attached.
	file string
	// below is the number of the backing device, or of the device whose
	// filesystem has the backing file.
	below uint64
}

// Ours returns the devices that are backed by a file below the root, and those
// on top of such a device. Upper ones come first, as they are detached first.
func Ours(root string) ([]string, error) {
	all, err := list()
	if err != nil {
		return nil, err
	}
	upper, lower := ours(all, root)
	return append(upper, lower...), nil
}

// Stacked returns those of Ours that are backed by another loop device.
func Stacked(root string) ([]string, error) {
	all, err := list()
	if err != nil {
		return nil, err
	}
	upper, _ := ours(all, root)
	return upper, nil
}

func list() ([]device, error) {
	paths, err := filepath.Glob("/dev/loop[0-9]*")
	if err != nil {
		return nil, fmt.Errorf("list the loop devices: %w", err)
	}
	var all []device
	for _, path := range paths {
		d, err := inspect(path)
		if errors.Is(err, unix.ENXIO) || errors.Is(err, os.ErrNotExist) {
			continue // not attached
		}
		if err != nil {
			return nil, err
		}
		all = append(all, d)
	}
	return all, nil
}

func ours(all []device, root string) (upper, lower []string) {
	numbers := map[uint64]bool{}
	for _, d := range all {
		if strings.HasPrefix(d.file, root+"/") {
			lower = append(lower, d.path)
			numbers[d.number] = true
		}
	}
	for _, d := range all {
		// The file of a volume may be on a filesystem of another device of the cluster. Its device is then not a lock of that
		// one.
		if d.below != 0 && numbers[d.below] && !numbers[d.number] {
			upper = append(upper, d.path)
		}
	}
	return upper, lower
}

func inspect(path string) (device, error) {
	file, err := os.Open(path)
	if err != nil {
		return device{}, fmt.Errorf("open a loop device: %w", err)
	}
	defer func() { _ = file.Close() }()
	info, err := unix.IoctlLoopGetStatus64(int(file.Fd()))
	if err != nil {
		return device{}, fmt.Errorf("read which file %s is attached to: %w", path, err)
	}
	var stat unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &stat); err != nil {
		return device{}, fmt.Errorf("read the properties of %s: %w", path, err)
	}
	name := info.File_name[:]
	if end := bytes.IndexByte(name, 0); end >= 0 {
		name = name[:end]
	}
	return device{path: path, number: stat.Rdev, file: string(name), below: info.Rdevice}, nil
}
