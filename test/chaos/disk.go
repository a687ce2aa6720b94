// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/test/chaos/oracle"
)

// recheck is how many known records are read again after each run.
const recheck = 4000

// readLog reads the guest's new records, and checks the last known ones again.
func (h *harness) readLog() error { return h.readLogFrom(h.chain.Length() - recheck) }

func (h *harness) readLogFrom(number int) (err error) {
	disk, err := openDirect(h.disk)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, disk.close()) }()
	return h.chain.Read(disk, number)
}

// directDisk reads the disk with O_DIRECT, as QEMU does: the page cache of the host may be stale.
type directDisk struct {
	file   *os.File
	buffer []byte
}

func openDirect(path string) (*directDisk, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECT, 0)
	if err != nil {
		return nil, fmt.Errorf("open the guest's disk: %w", err)
	}
	// O_DIRECT needs an aligned buffer; mmap returns whole pages.
	buffer, err := unix.Mmap(-1, 0, oracle.RecordSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return &directDisk{file: file, buffer: buffer}, nil
}

// ReadAt reads at most one record.
func (d *directDisk) ReadAt(into []byte, offset int64) (int, error) {
	if len(into) > len(d.buffer) {
		return 0, io.ErrShortBuffer
	}
	n, err := d.file.ReadAt(d.buffer, offset)
	return copy(into, d.buffer[:n]), err
}

func (d *directDisk) close() error { return errors.Join(d.file.Close(), unix.Munmap(d.buffer)) }
