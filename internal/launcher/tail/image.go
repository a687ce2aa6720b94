// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package tail

import (
	"fmt"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/launcherpod/imagesize"
)

// imageMode is the mode of new disk images: QEMU's user reads and writes them, and a group that the file system may have.
const imageMode = 0o660

// CreateImage creates a sparse disk image if there is none. The arguments are its path, the size of the disk, the bytes to keep free on
// the file system, and by how many percent the image may be smaller. An empty file is an image whose creation was interrupted.
func CreateImage(path string, arguments []string) error {
	if len(arguments) != 3 {
		return fmt.Errorf("create %s: want SIZE RESERVE PERCENT, got %q", path, arguments)
	}
	numbers := [3]uint64{}
	for i, argument := range arguments {
		n, err := strconv.ParseUint(argument, 10, 63)
		if err != nil {
			return fmt.Errorf("create %s: %w", path, err)
		}
		numbers[i] = n
	}
	// Never what a link leads to, and without waiting for the other end of a pipe.
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, imageMode)
	if err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	defer func() { _ = unix.Close(fd) }()
	var file unix.Stat_t
	if err := unix.Fstat(fd, &file); err != nil {
		return fmt.Errorf("fstat %s: %w", path, err)
	}
	if file.Mode&unix.S_IFMT != unix.S_IFREG || file.Size > 0 {
		return nil
	}
	var system unix.Statfs_t
	if err := unix.Fstatfs(fd, &system); err != nil {
		return fmt.Errorf("fstatfs %s: %w", path, err)
	}
	size, err := imagesize.Of(numbers[0], system.Bavail*uint64(system.Bsize), numbers[1], int(min(numbers[2], 100)))
	if err != nil {
		return fmt.Errorf("create %s: %w", path, err)
	}
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		return fmt.Errorf("truncate %s to %d bytes: %w", path, size, err)
	}
	return nil
}
