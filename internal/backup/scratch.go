// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package backup

import (
	"fmt"
	"math/bits"

	"k8s.io/apimachinery/pkg/api/resource"
)

const (
	// scratchTables is which part of a disk the tables of its scratch file need at most: a qcow2 image has 8 bytes for each cluster of 64 KiB,
	// and 2 for its reference count. scratchHeader is what it has beside them, rounded up.
	scratchTables = 4096
	scratchHeader = 1 << 20
	// reserveAtStart and reserve are which part of the file system is not counted as free, at the start of a pull and while it runs: ext4
	// keeps a 20th for root by default, which libvirt does not subtract, and file systems need some space for large files. The difference
	// is there so that a pull that has begun does not end because of a rounding.
	reserveAtStart = 16
	reserve        = 20
	// overhead is which part of a claim its file system needs for itself, so that it has less room than the claim: ext4 a 20th up to 2 GiB,
	// and less of larger ones; XFS a 50th, but at least minOverhead, for its log and what it reserves.
	overhead    = 16
	minOverhead = 128 * mebibyte
	mebibyte    = 1 << 20
)

// Scratch is the room for the scratch files of a pull. When their file system is full, QEMU cannot keep what the guest overwrites any more,
// and the guest's writes fail.
type Scratch struct {
	// Claim is the claim's name, for texts.
	Claim string
	// Need is the size that the files may reach, the sum of ScratchBytes, and Used what they occupy.
	Need, Used uint64
	// Capacity and Available are the size and the free space of the file system.
	Capacity, Available uint64
}

// ScratchBytes returns the size that the scratch file of a disk may reach. The guest may overwrite all of the disk.
func ScratchBytes(disk uint64) uint64 {
	return sum(disk, disk/scratchTables+scratchHeader)
}

// Add adds the scratch file of a disk that may reach a size and occupies some of it.
func (s *Scratch) Add(need, used uint64) {
	s.Need, s.Used = sum(s.Need, need), sum(s.Used, used)
}

// Refusal returns why no pull can begin, or "".
func (s *Scratch) Refusal() string {
	if s.Available >= sum(s.Need, s.Capacity/reserveAtStart) {
		return ""
	}
	return s.explain("the guest could overwrite all of its disks, and its writes would fail as soon as the claim is full")
}

// Shortage returns why a pull has to end now, or "". While nothing but the pull writes to the claim, there is none.
func (s *Scratch) Shortage() string {
	if sum(s.Available, s.Used) >= sum(s.Need, s.Capacity/reserve) {
		return ""
	}
	return s.explain("something else has filled the claim since the backup began, and the guest's writes would fail as soon as it is full")
}

func (s *Scratch) explain(why string) string {
	return fmt.Sprintf("the claim %s has too little room: %s are free, and the scratch files need up to %s, since %s. "+
		"Delete files from the claim, or use one with at least %s", s.Claim, binary(sum(s.Available, s.Used)), binary(s.Need), why, binary(s.enough()))
}

// enough returns the size of an empty claim that is not refused.
func (s *Scratch) enough() uint64 {
	fileSystem := sum(s.Need, s.Need/(reserveAtStart-1)+1)
	return sum(fileSystem, max(fileSystem/(overhead-1), minOverhead))
}

// binary returns a size for people, rounded up.
func binary(bytes uint64) string {
	bytes = min(bytes, 1<<62)
	if bytes > mebibyte {
		bytes = (bytes + mebibyte - 1) / mebibyte * mebibyte
	}
	return resource.NewQuantity(int64(bytes), resource.BinarySI).String()
}

// sum adds without an overflow: a launcher reports the sizes.
func sum(a, b uint64) uint64 {
	total, carry := bits.Add64(a, b, 0)
	if carry != 0 {
		return ^uint64(0)
	}
	return total
}
