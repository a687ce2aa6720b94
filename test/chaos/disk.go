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

// recheck is how many records that were read before are read again after each run; after the last run it is all.
const recheck = 4000

// readLog reads what the guest has written since, and a part of what it had written before.
func (h *harness) readLog() error { return h.readLogFrom(h.chain.Length() - recheck) }

func (h *harness) readLogFrom(number int) (err error) {
	disk, err := openDirect(h.disk)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, disk.close()) }()
	return h.chain.Read(disk, number)
}

// directDisk reads what is on the disk, past this machine's page cache, as QEMU does.
type directDisk struct {
	file   *os.File
	buffer []byte
}

func openDirect(path string) (*directDisk, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECT, 0)
	if err != nil {
		return nil, fmt.Errorf("open the guest's disk: %w", err)
	}
	// Memory of its own is aligned as the kernel wants it.
	buffer, err := unix.Mmap(-1, 0, oracle.RecordSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return &directDisk{file: file, buffer: buffer}, nil
}

// ReadAt reads a record at most.
func (d *directDisk) ReadAt(into []byte, offset int64) (int, error) {
	if len(into) > len(d.buffer) {
		return 0, io.ErrShortBuffer
	}
	n, err := d.file.ReadAt(d.buffer, offset)
	return copy(into, d.buffer[:n]), err
}

func (d *directDisk) close() error { return errors.Join(d.file.Close(), unix.Munmap(d.buffer)) }
