// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package imagesize computes the size of a new disk image on a claim, for the agent and for attachment Pods. It imports
// little, because one virt-tail runs for every guest.
package imagesize

import "fmt"

const (
	// Alignment is the alignment in bytes of the sizes of new disk images. It is a multiple of every sector and block
	// size.
	Alignment = 1 << 20
	// sectorBytes is the alignment of an image that is smaller than Alignment.
	sectorBytes = 512
)

// Of returns the size in bytes of a new image for a disk of want bytes on a file system with free bytes, of which
// reserve stay free. It is up to tolerateLessPercent percent smaller than wanted, because file systems have an
// overhead. If there is less space, it returns an error.
func Of(want, free, reserve uint64, tolerateLessPercent int) (uint64, error) {
	usable := uint64(0)
	if free > reserve {
		usable = free - reserve
	}
	size := want
	if size > usable {
		percent := uint64(min(max(tolerateLessPercent, 0), 100))
		if least := want / 100 * (100 - percent); usable < least || usable == 0 {
			return 0, fmt.Errorf("not enough space for a disk of %d bytes: %d bytes are free, of which %d stay reserved, "+
				"and at least %d are needed (pvcTolerateLessSpaceUpToPercent is %d)", want, free, reserve, least, percent)
		}
		size = usable
	}
	if size > Alignment {
		return size / Alignment * Alignment, nil
	}
	return size / sectorBytes * sectorBytes, nil
}
