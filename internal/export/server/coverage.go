// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"cmp"
	"slices"
	"sync"
)

const (
	// regionSize is the size of the parts of a disk whose ranges are in one list.
	regionSize = 1 << 32
	// maxRanges is how many ranges all volumes of a backup may have together. Each takes 16 bytes. 64 GiB have half as many if every other
	// block of 64 KiB has changed.
	maxRanges = 1 << 21
)

// span is a range of bytes.
type span struct{ start, end uint64 }

// coverage is which bytes of a disk were sent, or need not be because the client was told that they are zeros or have not changed. If the
// ranges become too many, new ones are forgotten: then more seems to be missing, and never less.
type coverage struct {
	// limit is how many ranges there may be.
	limit int

	mu      sync.Mutex
	regions map[uint64][]span
	ranges  int
	covered uint64
}

// add adds ranges.
func (c *coverage) add(ranges ...span) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.regions == nil {
		c.regions = map[uint64][]span{}
	}
	for _, r := range ranges {
		for r.start < r.end {
			end := min(r.end, (r.start/regionSize+1)*regionSize)
			c.insert(r.start/regionSize, span{r.start, end})
			r.start = end
		}
	}
}

// insert adds a range of one region.
func (c *coverage) insert(region uint64, r span) {
	list := c.regions[region]
	// Those from first up to last overlap with it or adjoin it.
	first, _ := slices.BinarySearchFunc(list, r.start, func(s span, start uint64) int { return cmp.Compare(s.end, start) })
	last := first
	for last < len(list) && list[last].start <= r.end {
		r.start, r.end = min(r.start, list[last].start), max(r.end, list[last].end)
		c.covered -= list[last].end - list[last].start
		last++
	}
	if first == last && c.ranges >= c.limit {
		return
	}
	c.covered += r.end - r.start
	c.ranges += 1 - (last - first)
	c.regions[region] = slices.Replace(list, first, last, r)
}

// complete reports whether all bytes of a disk of this size are covered.
func (c *coverage) complete(size uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.covered >= size
}
