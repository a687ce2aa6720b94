// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package brokerclient

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/agent/facts"
	"github.com/vireo-project/vireo/internal/brokerapi"
)

// sysBlock has a directory per block device of the node, by its number. Every container has it.
const sysBlock = "/sys/dev/block"

// blockSizes returns the block sizes of a disk: a device's from sysfs, a file's from its file system, which has one size.
func blockSizes(sys string, disk brokerapi.InspectResult) facts.BlockSizes {
	if disk.Mode&unix.S_IFMT == unix.S_IFBLK {
		return deviceSizes(sys, disk.Major, disk.Minor)
	}
	return facts.BlockSizes{Logical: disk.BlockSize, Physical: disk.BlockSize, Discard: disk.BlockSize}
}

// sectorBytes is the unit of the size in sysfs, whatever the device's block size. Source: Linux Documentation/ABI/stable/sysfs-block.
const sectorBytes = 512

// deviceBytes returns the size of a block device or a partition, or 0 if the file is neither.
func deviceBytes(sys string, file brokerapi.InspectResult) uint64 {
	if file.Mode&unix.S_IFMT != unix.S_IFBLK {
		return 0
	}
	text, err := os.ReadFile(filepath.Join(sys, fmt.Sprintf("%d:%d", file.Major, file.Minor), "size")) //nolint:gosec // of the kernel, by a device's number
	if err != nil {
		return 0
	}
	sectors, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 54)
	if err != nil {
		return 0
	}
	return sectors * sectorBytes
}

// deviceSizes reads the limits of a device's queue. A partition uses the queue of its disk, one directory above.
// Source: Linux Documentation/ABI/stable/sysfs-block.
func deviceSizes(sys string, major, minor uint32) facts.BlockSizes {
	device := filepath.Join(sys, fmt.Sprintf("%d:%d", major, minor))
	read := func(limit string) uint {
		for _, dir := range []string{device, device + "/.."} {
			// Not filepath.Join: ".." is relative to the target of the symlink.
			text, err := os.ReadFile(dir + "/queue/" + limit) //nolint:gosec // of the kernel, by a device's number
			if err != nil {
				continue
			}
			if size, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 32); err == nil {
				return uint(size)
			}
		}
		return 0
	}
	return facts.BlockSizes{Logical: read("logical_block_size"), Physical: read("physical_block_size"), Discard: read("discard_granularity")}
}
