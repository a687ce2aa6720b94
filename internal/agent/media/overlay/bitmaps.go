// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package overlay

import (
	"encoding/binary"
	"fmt"
	"slices"
)

// The format of bitmaps. Source: QEMU docs/interop/qcow2.rst.
const (
	// autoclearBitmaps says that the extension with the bitmaps is valid: a program that does not know bitmaps clears it
	// when it writes.
	autoclearBitmaps = 1 << 0
	// extensionBitmaps is the header extension that says where the directory of the bitmaps is.
	extensionBitmaps      = 0x23852875
	extensionBitmapsBytes = 24
	// directoryEntryBytes is the size of an entry of the directory without the bitmap's name.
	directoryEntryBytes = 24
	// bitmapInUse says that QEMU has not stored the bitmap, and bitmapAuto that QEMU tracks the disk's changes in it.
	bitmapInUse, bitmapAuto = 1 << 0, 1 << 1
	// bitmapTracksChanges is the only type of bitmaps.
	bitmapTracksChanges = 1
	// tableOnes is the entry of a cluster with bits that are all 1 and not in the file. A cluster without an entry has
	// zeros.
	tableOnes = 1
	// offsetMask are the bits of the offset in the entry of a cluster.
	offsetMask = 0x00fffffffffffe00
	// minGranularity and maxGranularity limit how many bytes of the disk a bit stands for, as binary logarithms.
	minGranularity, maxGranularity = 9, 31
	maxBitmapName                  = 1023
)

const (
	// MaxBitmaps is how many bitmaps an overlay can have here: as many as a guest keeps checkpoints.
	MaxBitmaps = 16
	// PartBytes is the size of a part of a bitmap. With a bit for each 64 KiB, a part stands for 2 GiB of the disk.
	PartBytes = 4 << 10
	// MaxBits is how many bytes all parts of the bitmaps of an overlay may have, which are written while the guest is
	// paused.
	MaxBits = 4 << 20
	// maxTail is how many bytes may be added to an overlay for its bitmaps, for the same reason. Each bitmap needs at
	// least two clusters.
	maxTail = 8 << 20
	// firstBytes is how many bytes at the beginning of an overlay have the header with its extensions.
	firstBytes = 4 << 10
)

// Bitmap records which parts of a disk have changed since a point in time.
type Bitmap struct {
	// Name is its name, which is that of a checkpoint.
	Name string `json:"name"`
	// Granularity is the binary logarithm of how many bytes of the disk a bit stands for.
	Granularity uint8 `json:"granularity"`
	// Parts are the parts in which not all bits are 0, in order.
	Parts []Part `json:"parts,omitempty"`
}

// Part is PartBytes of a bitmap, or what is left at its end.
type Part struct {
	// At is where in the bitmap the part is, in bytes.
	At uint64 `json:"at"`
	// Bits are the bits. The first one is the lowest of the first byte.
	Bits []byte `json:"bits"`
}

// Range is a part of an overlay's file.
type Range struct {
	// At is where in the file it is.
	At uint64
	// Bytes is its content.
	Bytes []byte
}

// AddBitmaps returns what to write to the file of an overlay without bitmaps, in this order, so that it has them.
// Before the last range is written, it still has none.
func (o Overlay) AddBitmaps(bitmaps []Bitmap) ([]Range, error) {
	if len(bitmaps) == 0 || len(bitmaps) > MaxBitmaps {
		return nil, fmt.Errorf("%d bitmaps: there must be 1 to %d", len(bitmaps), MaxBitmaps)
	}
	content, _, err := o.Open()
	if err != nil {
		return nil, err
	}
	if err := o.check(bitmaps); err != nil {
		return nil, err
	}
	header := make([]byte, firstBytes)
	if _, err := content.Read(header); err != nil {
		return nil, err
	}
	l := o.layout()
	if size := o.tailBytes(bitmaps, l.cluster); size > maxTail {
		return nil, fmt.Errorf("the bitmaps need %d bytes of the overlay: there may be %d", size, maxTail)
	}
	t := newTail(l)
	t.add(make([]byte, directoryBytes(bitmaps)))
	at := uint64(0)
	for i := range bitmaps {
		at += t.addBitmap(&bitmaps[i], o.DiskBytes, at)
	}
	clusters := uint64(len(t.bytes)) / l.cluster
	if l.clusters()+clusters > l.refcountBlocks*l.cluster/refcountBytes {
		return nil, fmt.Errorf("the overlay has no counts of references for %d clusters more", clusters)
	}
	counts := make([]byte, clusters*refcountBytes)
	for i := range clusters {
		binary.BigEndian.PutUint16(counts[i*refcountBytes:], 1)
	}
	o.addBitmapsExtension(header, len(bitmaps), directoryBytes(bitmaps), t.start)
	return []Range{
		{At: t.start, Bytes: t.bytes}, {At: l.refcountBlocksAt() + l.clusters()*refcountBytes, Bytes: counts}, {At: 0, Bytes: header},
	}, nil
}

// tailBytes returns what the bitmaps need in a file with a size of clusters, in which each part occupies a whole one.
// It is known before any of that is allocated, since the parts are from another Pod.
func (o Overlay) tailBytes(bitmaps []Bitmap, cluster uint64) uint64 {
	size := roundUp(directoryBytes(bitmaps), cluster)
	for i := range bitmaps {
		b := &bitmaps[i]
		size += roundUp(divideUp(b.size(o.DiskBytes), cluster)*entryBytes, cluster)
		for n := range b.Parts {
			if n == 0 || b.Parts[n].At/cluster != b.Parts[n-1].At/cluster {
				size += cluster
			}
		}
	}
	return size
}

// addBitmapsExtension adds the extension after that with the name of the data file.
func (o Overlay) addBitmapsExtension(header []byte, bitmaps int, size, at uint64) {
	e := binary.BigEndian
	e.PutUint64(header[88:], autoclearRaw|autoclearBitmaps)
	extension := header[headerBytes+8+roundUp(uint64(len(o.DataFile)), 8):]
	e.PutUint32(extension, extensionBitmaps)
	e.PutUint32(extension[4:], extensionBitmapsBytes)
	e.PutUint32(extension[8:], uint32(bitmaps))
	e.PutUint64(extension[16:], size)
	e.PutUint64(extension[24:], at)
}

// check returns an error if the bitmaps cannot be those of the disk.
func (o Overlay) check(bitmaps []Bitmap) error {
	names, total := map[string]bool{}, 0
	for i := range bitmaps {
		b := &bitmaps[i]
		switch {
		case b.Name == "" || len(b.Name) > maxBitmapName:
			return fmt.Errorf("the name of a bitmap has %d bytes: it must have 1 to %d", len(b.Name), maxBitmapName)
		case names[b.Name]:
			return fmt.Errorf("two bitmaps have the name %.64q", b.Name)
		case b.Granularity < minGranularity || b.Granularity > maxGranularity:
			return fmt.Errorf("a bit of the bitmap %.64q stands for 2^%d bytes: the exponent must be %d to %d",
				b.Name, b.Granularity, minGranularity, maxGranularity)
		}
		names[b.Name] = true
		size, next := b.size(o.DiskBytes), uint64(0)
		for _, part := range b.Parts {
			if part.At < next || part.At%PartBytes != 0 || part.At >= size ||
				uint64(len(part.Bits)) != min(PartBytes, size-part.At) {
				return fmt.Errorf("the bitmap %.64q of %d bytes has no part of %d bytes at %d", b.Name, size, len(part.Bits),
					part.At)
			}
			next = part.At + PartBytes
			total += len(part.Bits)
		}
	}
	if total > MaxBits {
		return fmt.Errorf("the bitmaps have %d bytes: they may have %d", total, MaxBits)
	}
	return nil
}

// size returns how many bytes the bits of a disk have.
func (b *Bitmap) size(diskBytes uint64) uint64 { return divideUp(b.bits(diskBytes), 8) }

func (b *Bitmap) bits(diskBytes uint64) uint64 { return divideUp(diskBytes, 1<<b.Granularity) }

// added returns how many bytes a bitmap adds to an overlay with clusters of a size, without the directory.
func (b *Bitmap) added(diskBytes, cluster uint64) uint64 {
	bytes, last := roundUp(divideUp(b.size(diskBytes), cluster)*entryBytes, cluster), uint64(0)
	for i, part := range b.Parts {
		if number := part.At / cluster; i == 0 || number != last {
			bytes, last = bytes+cluster, number
		}
	}
	return bytes
}

// Added returns about how many bytes bitmaps add to the overlay of a disk.
func Added(diskBytes uint64, bitmaps []Bitmap) (bytes uint64) {
	cluster := Overlay{DiskBytes: diskBytes}.layout().cluster
	for i := range bitmaps {
		bytes += bitmaps[i].added(diskBytes, cluster)
	}
	return bytes + roundUp(directoryBytes(bitmaps), cluster) + cluster
}

// maskEnd clears the bits behind the end of the disk.
func (b *Bitmap) maskEnd(diskBytes uint64, part *Part) {
	bits := b.bits(diskBytes)
	if end := part.At + uint64(len(part.Bits)); bits%8 != 0 && end == b.size(diskBytes) {
		part.Bits[len(part.Bits)-1] &= byte(1<<(bits%8)) - 1
	}
}

func directoryBytes(bitmaps []Bitmap) (bytes uint64) {
	for i := range bitmaps {
		bytes += roundUp(directoryEntryBytes+uint64(len(bitmaps[i].Name)), 8)
	}
	return bytes
}

// tail is what is added to an overlay behind its tables.
type tail struct {
	cluster uint64
	// start is where in the file it begins.
	start uint64
	bytes []byte
}

func newTail(l layout) *tail { return &tail{cluster: l.cluster, start: l.clusters() * l.cluster} }

// add adds content in clusters of its own, and returns where in the file it is.
func (t *tail) add(content []byte) uint64 {
	at := t.start + uint64(len(t.bytes))
	t.bytes = append(t.bytes, content...)
	t.bytes = append(t.bytes, make([]byte, roundUp(uint64(len(content)), t.cluster)-uint64(len(content)))...)
	return at
}

// addBitmap adds a bitmap whose entry in the directory is at an offset. It returns the size of the entry.
func (t *tail) addBitmap(b *Bitmap, diskBytes, entryAt uint64) uint64 {
	e := binary.BigEndian
	clusters := divideUp(b.size(diskBytes), t.cluster)
	table := make([]byte, clusters*entryBytes)
	for parts := b.Parts; len(parts) > 0; {
		number := parts[0].At / t.cluster
		data := make([]byte, t.cluster)
		for len(parts) > 0 && parts[0].At/t.cluster == number {
			part := Part{At: parts[0].At, Bits: slices.Clone(parts[0].Bits)}
			b.maskEnd(diskBytes, &part)
			copy(data[part.At%t.cluster:], part.Bits)
			parts = parts[1:]
		}
		e.PutUint64(table[number*entryBytes:], t.add(data))
	}
	tableAt := t.add(table)
	entry := t.bytes[entryAt:]
	e.PutUint64(entry, tableAt)
	e.PutUint32(entry[8:], uint32(clusters))
	e.PutUint32(entry[12:], bitmapAuto)
	entry[16], entry[17] = bitmapTracksChanges, b.Granularity
	e.PutUint16(entry[18:], uint16(len(b.Name)))
	copy(entry[directoryEntryBytes:], b.Name)
	return roundUp(directoryEntryBytes+uint64(len(b.Name)), 8)
}

func roundUp(n, to uint64) uint64 { return divideUp(n, to) * to }
