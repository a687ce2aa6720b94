// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package overlay

import (
	"encoding/binary"
	"fmt"
	"io"
)

// The format of qcow2, version 3. Source: QEMU docs/interop/qcow2.rst.
const (
	magic   = 0x514649fb
	version = 3
	// headerBytes is the size of the header without its extensions.
	headerBytes = 104
	// incompatibleDataFile says that the guest's data is in another file.
	incompatibleDataFile = 1 << 2
	// autoclearRaw says that this file is a raw image: each cluster is at its own offset.
	autoclearRaw = 1 << 1
	// refcountOrder is the binary logarithm of the bits of a reference count.
	refcountOrder = 4
	refcountBytes = 1 << refcountOrder / 8
	entryBytes    = 8
	// copied marks a cluster that is in use once. In an overlay with a data file, it also distinguishes the offset 0 from
	// no offset.
	copied = 1 << 63
	// extensionDataFile is the header extension with the name of the data file.
	extensionDataFile = 0x44415441
	maxNameBytes      = 1023

	sectorBytes = 512
	// minCluster and maxCluster are the sizes of clusters to choose from. A guest's discard of less than a cluster has no
	// effect, so small ones are better; they need larger tables.
	minCluster, maxCluster = 64 << 10, 2 << 20
	// tableBytes is the size up to which tables may grow before the clusters do. QEMU has those in memory that the guest
	// uses.
	tableBytes = 8 << 20
	// maxDisk is more than the size of any disk, and limits the size of an overlay: 64 MiB for its tables.
	maxDisk = 16 << 40
)

// Overlay describes an overlay without data: a guest that uses it reads and writes another file, the data file, which
// stays a raw image.
type Overlay struct {
	// DiskBytes is the size of the guest's disk.
	DiskBytes uint64
	// DataFile is the path of the raw image or the block device.
	DataFile string
}

// FileName returns the name of the overlay of a volume's disk. With the size in its name, an overlay of an earlier
// attempt has the same number of bytes.
func FileName(volume string, diskBytes uint64) string {
	return fmt.Sprintf("%s-%d.qcow2", volume, diskBytes)
}

// layout is where the parts of an overlay are, in clusters from its beginning: the header, and those below, in this
// order.
type layout struct {
	cluster uint64
	// refcountTable, refcountBlocks, l1 and l2 are how many clusters each part has.
	refcountTable, refcountBlocks, l1, l2 uint64
}

// Open returns the content of the overlay's file, and how many bytes it has. Reading takes memory for one cluster only.
func (o Overlay) Open() (content io.Reader, bytes uint64, err error) {
	switch {
	case o.DiskBytes == 0 || o.DiskBytes%sectorBytes != 0:
		return nil, 0, fmt.Errorf("a disk of %d bytes: the size must be a multiple of %d, and not 0", o.DiskBytes,
			sectorBytes)
	case o.DiskBytes > maxDisk:
		return nil, 0, fmt.Errorf("a disk of %d bytes: the size must be at most %d", o.DiskBytes, uint64(maxDisk))
	case o.DataFile == "" || len(o.DataFile) > maxNameBytes:
		return nil, 0, fmt.Errorf("a data file with a path of %d bytes: it must have 1 to %d", len(o.DataFile), maxNameBytes)
	}
	l := o.layout()
	return &reader{overlay: o, layout: l}, l.clusters() * l.cluster, nil
}

// reader makes one cluster after the other.
type reader struct {
	overlay Overlay
	layout  layout
	// next is the number of the next cluster, and left what was not read of the last one, which is in cluster.
	next          uint64
	cluster, left []byte
}

// Read implements io.Reader.
func (r *reader) Read(into []byte) (int, error) {
	if len(r.left) == 0 {
		if r.next == r.layout.clusters() {
			return 0, io.EOF
		}
		if r.cluster == nil {
			r.cluster = make([]byte, r.layout.cluster)
		}
		clear(r.cluster)
		r.overlay.fill(r.cluster, r.layout, r.next)
		r.left = r.cluster
		r.next++
	}
	n := copy(into, r.left)
	r.left = r.left[n:]
	return n, nil
}

// fill writes the content of a cluster, which is empty.
func (o Overlay) fill(cluster []byte, l layout, number uint64) {
	parts := []struct {
		clusters uint64
		fill     func(cluster []byte, number uint64)
	}{
		{1, func(cluster []byte, _ uint64) { o.fillHeader(cluster, l) }},
		{l.refcountTable, l.fillRefcountTable},
		{l.refcountBlocks, l.fillRefcountBlock},
		{l.l1, l.fillL1},
		{l.l2, func(cluster []byte, number uint64) { o.fillL2(cluster, l, number) }},
	}
	for _, part := range parts {
		if number < part.clusters {
			part.fill(cluster, number)
			return
		}
		number -= part.clusters
	}
}

func (o Overlay) layout() layout {
	l := layout{cluster: minCluster}
	for l.cluster < maxCluster && divideUp(o.DiskBytes, l.cluster)*entryBytes > tableBytes {
		l.cluster *= 2
	}
	l.l2 = divideUp(o.DiskBytes, l.cluster*l.cluster/entryBytes)
	l.l1 = divideUp(l.l2*entryBytes, l.cluster)
	// The counts of references have references themselves.
	for {
		blocks := divideUp(l.clusters()*refcountBytes, l.cluster)
		table := divideUp(blocks*entryBytes, l.cluster)
		if blocks == l.refcountBlocks && table == l.refcountTable {
			return l
		}
		l.refcountBlocks, l.refcountTable = blocks, table
	}
}

func (l layout) clusters() uint64 { return 1 + l.refcountTable + l.refcountBlocks + l.l1 + l.l2 }

func (l layout) refcountTableAt() uint64  { return l.cluster }
func (l layout) refcountBlocksAt() uint64 { return l.refcountTableAt() + l.refcountTable*l.cluster }
func (l layout) l1At() uint64             { return l.refcountBlocksAt() + l.refcountBlocks*l.cluster }
func (l layout) l2At() uint64             { return l.l1At() + l.l1*l.cluster }

func (o Overlay) fillHeader(image []byte, l layout) {
	e := binary.BigEndian
	e.PutUint32(image[0:], magic)
	e.PutUint32(image[4:], version)
	var clusterBits uint32
	for l.cluster>>clusterBits > 1 {
		clusterBits++
	}
	e.PutUint32(image[20:], clusterBits)
	e.PutUint64(image[24:], o.DiskBytes)
	e.PutUint32(image[36:], uint32(l.l2)) // the entries of the L1 table
	e.PutUint64(image[40:], l.l1At())
	e.PutUint64(image[48:], l.refcountTableAt())
	e.PutUint32(image[56:], uint32(l.refcountTable))
	e.PutUint64(image[72:], incompatibleDataFile)
	e.PutUint64(image[88:], autoclearRaw)
	e.PutUint32(image[96:], refcountOrder)
	e.PutUint32(image[100:], headerBytes)
	// An extension with the type 0 ends the list, and what follows is 0 anyway.
	e.PutUint32(image[headerBytes:], extensionDataFile)
	e.PutUint32(image[headerBytes+4:], uint32(len(o.DataFile)))
	copy(image[headerBytes+8:], o.DataFile)
}

// fillRefcountTable names the blocks with the counts of references.
func (l layout) fillRefcountTable(cluster []byte, number uint64) {
	perTable := l.cluster / entryBytes
	for i := range min(perTable, l.refcountBlocks-min(number*perTable, l.refcountBlocks)) {
		binary.BigEndian.PutUint64(cluster[i*entryBytes:], l.refcountBlocksAt()+(number*perTable+i)*l.cluster)
	}
}

// fillRefcountBlock counts one reference to each cluster of the overlay. The clusters of the data file have no counts.
func (l layout) fillRefcountBlock(cluster []byte, number uint64) {
	perBlock := l.cluster / refcountBytes
	for i := range min(perBlock, l.clusters()-min(number*perBlock, l.clusters())) {
		binary.BigEndian.PutUint16(cluster[i*refcountBytes:], 1)
	}
}

// fillL1 names the L2 tables.
func (l layout) fillL1(cluster []byte, number uint64) {
	perTable := l.cluster / entryBytes
	for i := range min(perTable, l.l2-min(number*perTable, l.l2)) {
		binary.BigEndian.PutUint64(cluster[i*entryBytes:], copied|(l.l2At()+(number*perTable+i)*l.cluster))
	}
}

// fillL2 gives each cluster of the disk its own offset.
func (o Overlay) fillL2(cluster []byte, l layout, number uint64) {
	perTable, all := l.cluster/entryBytes, divideUp(o.DiskBytes, l.cluster)
	for i := range min(perTable, all-min(number*perTable, all)) {
		binary.BigEndian.PutUint64(cluster[i*entryBytes:], copied|(number*perTable+i)*l.cluster)
	}
}

func divideUp(n, by uint64) uint64 { return (n + by - 1) / by }
