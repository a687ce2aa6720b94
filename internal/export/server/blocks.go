// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"context"
	"errors"
	"time"

	"github.com/vireo-project/vireo/internal/export/nbd"
)

// Types of blocks. KubeVirt's, which are flags of NBD.
const (
	// typeHole is not allocated; only in backups of all data. typeDirty has changed; only in incremental ones. typeZero reads as zeros.
	typeHole  = 1
	typeDirty = 1
	typeZero  = 2
)

// mapTime is how long a request for a list of blocks may ask QEMU for more of them.
const mapTime = 20 * time.Second

// block is a range of blocks with the same type.
type block struct {
	Offset      uint64 `json:"offset"`
	Length      uint64 `json:"length"`
	Type        uint32 `json:"type"`
	Description string `json:"description"`
}

// page is the response to a request for a list of blocks.
type page struct {
	Extents []block `json:"extents"`
	// NextOffset is where the next request has to begin, or nil if there are no more blocks.
	NextOffset *uint64 `json:"next_offset"`
}

// descriptionOf returns the description of a type. KubeVirt's.
func descriptionOf(kind uint32, incremental bool) string {
	names := []string{"data", "hole", "zero", "hole,zero"}
	if incremental {
		names = []string{"clean", "dirty", "zero", "dirty,zero"}
	}
	return names[kind]
}

// isNeeded reports whether a backup lacks something without the data of blocks of a type.
func isNeeded(kind uint32, incremental bool) bool {
	return kind&typeZero == 0 && (!incremental || kind&typeDirty != 0)
}

// skippable returns the ranges of a page that clients need not read.
func (p *page) skippable(incremental bool) (ranges []span) {
	for _, b := range p.Extents {
		if !isNeeded(b.Type, incremental) {
			ranges = append(ranges, span{b.Offset, b.Offset + b.Length})
		}
	}
	return ranges
}

// listing collects the blocks of a range of a volume.
type listing struct {
	page
	// at is the offset up to which the page is complete, and end that of the range.
	at, end uint64
	limit   int
	changes string
}

// list fills the page with the blocks from an offset on.
func (p *pull) list(ctx context.Context, volume string, l *listing) error {
	started := time.Now()
	l.Extents = []block{}
	for l.at < l.end {
		if len(l.Extents) > 0 && time.Since(started) > mapTime {
			l.stop()
			return nil
		}
		var status map[string][]nbd.Extent
		var from uint64
		err := p.sessions.with(ctx, volume, func(c *nbd.Client) (err error) {
			size := uint64(c.BlockSize())
			from = l.at / size * size
			status, err = c.Status(from, min((l.end-from+size-1)/size*size, c.Size()-from))
			return err
		})
		if err != nil {
			return err
		}
		full, err := l.addAll(from, status)
		if err != nil || full {
			return err
		}
	}
	return nil
}

// addAll adds what a reply of QEMU has, from an offset on, and reports whether the page is full.
func (l *listing) addAll(from uint64, status map[string][]nbd.Extent) (full bool, err error) {
	allocated, changed := status[nbd.AllocationContext], status[l.changes]
	if l.changes == "" {
		changed = allocated
	}
	before := l.at
	for a, c := 0, 0; a < len(allocated) && c < len(changed) && l.at < l.end; {
		length := min(allocated[a].Length, changed[c].Length)
		kind := allocated[a].Flags & (typeHole | typeZero)
		if l.changes != "" {
			kind = allocated[a].Flags&typeZero | changed[c].Flags&typeDirty
		}
		if !l.add(span{from, from + length}, kind) {
			l.stop()
			return true, nil
		}
		from += length
		if allocated[a].Length -= length; allocated[a].Length == 0 {
			a++
		}
		if l.changes != "" {
			changed[c].Length -= length
		}
		if changed[c].Length == 0 {
			c++
		}
	}
	if l.at == before {
		return false, errors.New("QEMU has reported no blocks")
	}
	return false, nil
}

// add adds the part of a range that follows the blocks of the page, and returns false if there is no room for it.
func (l *listing) add(r span, kind uint32) bool {
	r.start, r.end = max(r.start, l.at), min(r.end, l.end)
	if r.start >= r.end {
		return true
	}
	if last := len(l.Extents) - 1; last >= 0 && l.Extents[last].Type == kind {
		l.Extents[last].Length += r.end - r.start
		l.at = r.end
		return true
	}
	if len(l.Extents) == l.limit {
		return false
	}
	l.Extents = append(l.Extents, block{Offset: r.start, Length: r.end - r.start, Type: kind, Description: descriptionOf(kind, l.changes != "")})
	l.at = r.end
	return true
}

// stop ends the page before the end of the range.
func (l *listing) stop() { l.NextOffset = &l.at }
