// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package libvirt

import (
	"fmt"
	"io/fs"
	"path"
)

// Sum returns the size of a file of AddFile, which is its capacity, and the checksum that was set with SetSum.
func (l *Launcher) Sum(file string) (size int64, crc uint32, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, v := range l.poolAt(path.Dir(file)).volumes {
		if v.Name == path.Base(file) {
			return int64(v.Capacity), l.sums[file], nil
		}
	}
	return 0, 0, fmt.Errorf("read %s: %w", file, fs.ErrNotExist)
}

// SetSum sets the checksum of a file.
func (l *Launcher) SetSum(file string, crc uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sums[file] = crc
}
