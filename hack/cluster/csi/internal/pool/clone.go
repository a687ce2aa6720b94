// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package pool

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// Clone makes an empty file share the blocks of another one. The content is that of one moment, even if the other file
// is being written. If the filesystem does not support it, the error is errors.ErrUnsupported.
func Clone(target, source *os.File) error {
	if err := unix.IoctlFileClone(int(target.Fd()), int(source.Fd())); err != nil {
		return fmt.Errorf("clone %s: %w", source.Name(), err)
	}
	return nil
}

// Copy copies a file, which must not be written meanwhile, to an empty one, and keeps its holes.
func Copy(target, source *os.File) error {
	info, err := source.Stat()
	if err != nil {
		return fmt.Errorf("read the size of a disk: %w", err)
	}
	if err := target.Truncate(info.Size()); err != nil {
		return fmt.Errorf("size a copy: %w", err)
	}
	for end := int64(0); ; {
		start, err := unix.Seek(int(source.Fd()), end, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil // only a hole is left
		}
		if err != nil {
			return fmt.Errorf("find data: %w", err)
		}
		if end, err = unix.Seek(int(source.Fd()), start, unix.SEEK_HOLE); err != nil {
			return fmt.Errorf("find a hole: %w", err)
		}
		if _, err := io.Copy(io.NewOffsetWriter(target, start), io.NewSectionReader(source, start, end-start)); err != nil {
			return fmt.Errorf("copy data: %w", err)
		}
	}
}
