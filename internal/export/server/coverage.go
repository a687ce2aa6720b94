// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
)

const (
	// regionSize is the size of the parts of a disk whose ranges are in one list.
	regionSize = 1 << 32
	// maxRanges is how many ranges all volumes of a backup may have together. Each takes 16 bytes. A disk of 64 GiB of which every other block
	// of 64 KiB has changed has a quarter of them, until the data between what has not changed is read, too.
	maxRanges = 1 << 21
)

// span is a range of bytes.
type span struct{ start, end uint64 }

// budget limits how many ranges the volumes of a backup have together.
type budget struct {
	limit int64
	used  atomic.Int64
}

// take takes one range, and returns false if there are too many.
func (b *budget) take() bool {
	if b.used.Add(1) <= b.limit {
		return true
	}
	b.used.Add(-1)
	return false
}

// coverage is which bytes of a disk were sent, or need not be because the client was told that they are zeros or have not changed. If the
// ranges become too many, new ones are forgotten: then more seems to be missing, and never less.
type coverage struct {
	// budget is shared by all volumes of the backup.
	budget *budget

	mu      sync.Mutex
	regions map[uint64][]span
	covered uint64
	// forgot is set once a range was forgotten.
	forgot bool
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
	if first == last && !c.budget.take() {
		c.forgot = true
		return
	}
	c.covered += r.end - r.start
	c.budget.used.Add(int64(min(0, 1-(last-first))))
	c.regions[region] = slices.Replace(list, first, last, r)
}

// complete reports whether all bytes of a disk of this size are covered, and whether ranges were forgotten.
func (c *coverage) complete(size uint64) (all, forgot bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.covered >= size, c.forgot
}
