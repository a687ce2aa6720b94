// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package overlay

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
)

// Limits of what is read of a file that a launcher may have written.
const (
	maxHeader = 64 << 10
	// maxEntries is how many bitmaps an overlay may have, of which MaxBitmaps are read.
	maxEntries   = 256
	maxDirectory = maxEntries * (directoryEntryBytes + maxBitmapName + 8)
	// maxRead is how many bytes are read.
	maxRead = 32 << 20
)

// ReadBitmaps returns the bitmaps in the file of an overlay, and the size of its disk. Those that QEMU has in use are
// not among them: their bits are not in the file. If there are more than can be added to another overlay, the oldest
// are not among them either: a guest can have bitmaps that no backup needs any more. The file may have any content.
func ReadBitmaps(file io.ReaderAt) (diskBytes uint64, bitmaps []Bitmap, err error) {
	r := bitmapReader{file: file, left: maxRead}
	directory, count, err := r.open()
	if err != nil {
		return 0, nil, err
	}
	var entries []*entry
	for range count {
		e, rest, err := r.readEntry(directory)
		if err != nil {
			return 0, nil, err
		}
		directory = rest
		if e != nil {
			entries = append(entries, e)
		}
	}
	newest := slices.SortedStableFunc(slices.Values(entries), func(a, b *entry) int { return CompareAge(b.Name, a.Name) })
	for i, e := range newest[:min(len(newest), MaxBitmaps)] {
		err := r.readBitmap(e)
		if i > 0 && errors.Is(err, errLimit) {
			break
		}
		if err != nil {
			return 0, nil, err
		}
		e.complete = true
	}
	for _, e := range entries {
		if e.complete {
			bitmaps = append(bitmaps, e.Bitmap)
		}
	}
	return r.diskBytes, bitmaps, nil
}

// timeBytes is the size of the time at the end of the names of checkpoints, which are those of bitmaps.
const timeBytes = len("2006-01-02_15-04-05")

// CompareAge returns less than 0 if the bitmap with the first name is the older one. The names of checkpoints end with
// their time.
func CompareAge(a, b string) int {
	return cmp.Or(cmp.Compare(a[max(0, len(a)-timeBytes):], b[max(0, len(b)-timeBytes):]), cmp.Compare(a, b))
}

// errLimit means that there is more than may be read or added to another overlay.
var errLimit = errors.New("too much")

// entry is an entry of the directory of the bitmaps.
type entry struct {
	Bitmap
	// tableAt is where the table of its clusters is, and clusters how many it has.
	tableAt, clusters uint64
	// complete reports whether its bits were read.
	complete bool
}

// bitmapReader reads the bitmaps of one file.
type bitmapReader struct {
	file               io.ReaderAt
	diskBytes, cluster uint64
	// bits is how many bytes of bitmaps were returned, and left how many bytes may still be read.
	bits, left int
	// added is how many bytes they add to another overlay.
	added uint64
}

// open reads the header, and returns the directory of the bitmaps and how many it has.
func (r *bitmapReader) open() (directory []byte, count uint32, err error) {
	e := binary.BigEndian
	header := make([]byte, maxHeader)
	if n, err := r.file.ReadAt(header, 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, 0, err
	} else if n < headerBytes {
		return nil, 0, errors.New("the file is too short for an overlay")
	}
	bits := min(e.Uint32(header[20:]), 63)
	switch {
	case e.Uint32(header) != magic || e.Uint32(header[4:]) != version:
		return nil, 0, errors.New("the file is no overlay")
	case 1<<bits < uint64(minCluster) || 1<<bits > uint64(maxCluster):
		return nil, 0, fmt.Errorf("the overlay has clusters of 2^%d bytes", bits)
	case e.Uint64(header[72:]) != incompatibleDataFile:
		return nil, 0, fmt.Errorf("the overlay has the incompatible features %#x", e.Uint64(header[72:]))
	case e.Uint64(header[88:])&autoclearRaw == 0:
		return nil, 0, errors.New("the overlay's data file is no raw image")
	}
	r.cluster, r.diskBytes = 1<<bits, e.Uint64(header[24:])
	if r.diskBytes == 0 || r.diskBytes > maxDisk {
		return nil, 0, fmt.Errorf("the overlay has a disk of %d bytes", r.diskBytes)
	}
	if e.Uint64(header[88:])&autoclearBitmaps == 0 {
		return nil, 0, nil
	}
	extension := findExtension(header, extensionBitmaps)
	if len(extension) != extensionBitmapsBytes {
		return nil, 0, errors.New("the overlay does not say where its bitmaps are")
	}
	count, size, at := e.Uint32(extension), e.Uint64(extension[8:]), e.Uint64(extension[16:])
	if count > maxEntries || size > maxDirectory {
		return nil, 0, fmt.Errorf("the overlay has %d bitmaps in a directory of %d bytes: there may be %d", count, size,
			maxEntries)
	}
	directory = make([]byte, size)
	return directory, count, r.read(directory, at)
}

// findExtension returns the content of an extension of the header, or nil.
func findExtension(header []byte, kind uint32) []byte {
	at := uint64(binary.BigEndian.Uint32(header[100:]))
	for at+8 <= uint64(len(header)) {
		found, size := binary.BigEndian.Uint32(header[at:]), uint64(binary.BigEndian.Uint32(header[at+4:]))
		if found == 0 || size > uint64(len(header))-at-8 {
			return nil
		}
		if found == kind {
			return header[at+8 : at+8+size]
		}
		at += 8 + roundUp(size, 8)
	}
	return nil
}

func (r *bitmapReader) read(into []byte, at uint64) error {
	if r.left -= len(into); at > 1<<62 || r.left < 0 {
		return fmt.Errorf("%w: the bitmaps have %d bytes at %d, and %d may be read", errLimit, len(into), at, maxRead)
	}
	n, err := r.file.ReadAt(into, int64(at))
	if n < len(into) {
		return fmt.Errorf("read %d bytes at %d: %w", len(into), at, err)
	}
	return nil
}

// readEntry returns the directory's first entry, or nil if QEMU has its bitmap in use, and the other entries.
func (r *bitmapReader) readEntry(directory []byte) (*entry, []byte, error) {
	e := binary.BigEndian
	if len(directory) < directoryEntryBytes {
		return nil, nil, errors.New("the directory of the bitmaps is too short")
	}
	name, extra := uint64(e.Uint16(directory[18:])), uint64(e.Uint32(directory[20:]))
	size := roundUp(directoryEntryBytes+extra+name, 8)
	if size > uint64(len(directory)) {
		return nil, nil, errors.New("the directory of the bitmaps is too short")
	}
	rest := directory[size:]
	if e.Uint32(directory[12:]) != bitmapAuto || extra != 0 || directory[16] != bitmapTracksChanges {
		return nil, rest, nil
	}
	b := Bitmap{Name: string(directory[directoryEntryBytes : directoryEntryBytes+name]), Granularity: directory[17]}
	if b.Granularity < minGranularity || b.Granularity > maxGranularity {
		return nil, nil, fmt.Errorf("a bit of a bitmap stands for 2^%d bytes", b.Granularity)
	}
	clusters := divideUp(b.size(r.diskBytes), r.cluster)
	if got := uint64(e.Uint32(directory[8:])); got != clusters {
		return nil, nil, fmt.Errorf("a bitmap has %d clusters, and not %d", got, clusters)
	}
	return &entry{Bitmap: b, tableAt: e.Uint64(directory), clusters: clusters}, rest, nil
}

// readBitmap reads the bits of an entry's bitmap.
func (r *bitmapReader) readBitmap(e *entry) error {
	if e.clusters*entryBytes > maxRead {
		return fmt.Errorf("%w: a bitmap has %d clusters", errLimit, e.clusters)
	}
	table := make([]byte, e.clusters*entryBytes)
	if err := r.read(table, e.tableAt); err != nil {
		return err
	}
	if err := r.readBits(&e.Bitmap, table); err != nil {
		return err
	}
	cluster := Overlay{DiskBytes: r.diskBytes}.layout().cluster
	if r.added += e.added(r.diskBytes, cluster); r.added+
		roundUp(MaxBitmaps*(directoryEntryBytes+maxBitmapName+8), cluster) > maxTail {
		return fmt.Errorf("%w: the bitmaps need %d bytes of another overlay, and there may be %d", errLimit, r.added, maxTail)
	}
	return nil
}

// readBits reads the bits of a bitmap whose clusters are in a table.
func (r *bitmapReader) readBits(b *Bitmap, table []byte) error {
	size := b.size(r.diskBytes)
	for at := uint64(0); at < size; at += r.cluster {
		entry := binary.BigEndian.Uint64(table[at/r.cluster*entryBytes:])
		if entry == 0 {
			continue
		}
		data := make([]byte, min(r.cluster, size-at))
		if offset := entry & offsetMask; offset != 0 {
			if err := r.read(data, offset); err != nil {
				return err
			}
		} else if entry == tableOnes {
			for i := range data {
				data[i] = 0xff
			}
		} else {
			return fmt.Errorf("a cluster of a bitmap is at %#x", entry)
		}
		if err := r.addParts(b, at, data); err != nil {
			return err
		}
	}
	return nil
}

// addParts adds the parts of a cluster in which not all bits are 0. A part is in one cluster.
func (r *bitmapReader) addParts(b *Bitmap, at uint64, data []byte) error {
	for ; len(data) > 0; at += PartBytes {
		part := Part{At: at, Bits: data[:min(PartBytes, len(data))]}
		data = data[len(part.Bits):]
		if !slices.ContainsFunc(part.Bits, func(bits byte) bool { return bits != 0 }) {
			continue
		}
		if r.bits += len(part.Bits); r.bits > MaxBits {
			return fmt.Errorf("%w: the bitmaps have more than %d bytes that are not 0", errLimit, MaxBits)
		}
		part.Bits = slices.Clone(part.Bits) // the cluster is up to 512 times as large
		b.maskEnd(r.diskBytes, &part)
		b.Parts = append(b.Parts, part)
	}
	return nil
}
