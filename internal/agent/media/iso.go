// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package media

import (
	"encoding/binary"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"
)

// Sizes on a medium. Source: ECMA-119 (ISO 9660), clauses in parentheses.
const (
	// isoBlock is the sector size.
	isoBlock = 2048
	// maxLabelBytes is the size of the field for the label (8.4.7).
	maxLabelBytes = 32
	// maxRecord is the largest directory record (9.1.1), and recordHead the part before the name.
	maxRecord, recordHead = 254, 33
	// firstDescriptor is the sector of the primary volume descriptor (6.2.1), before those of Joliet and of the end.
	firstDescriptor, descriptors = 16, 3
)

const (
	// maxNameBytes is the longest name of a file or a directory that Linux reads. Kubernetes' names of keys are not
	// longer.
	maxNameBytes = 253
	// maxDirs is how many directories a medium may have. A volume has at most 1000 files, but paths can be deep.
	maxDirs = 4096
)

// isoNode is a file or a directory of a medium.
type isoNode struct {
	name     string
	content  []byte
	children []*isoNode // of a directory
	dir      bool
	// extent is the first sector of a file's content.
	extent int
}

// isoDir is a directory in one of the two trees of a medium: that of ISO 9660 with Rock Ridge, which Linux reads, and
// that of Joliet, which Windows reads. Both have the same files, by names of their own.
type isoDir struct {
	parent  *isoDir
	node    *isoNode
	id      []byte
	records []isoRecord
	// number is that in the path table.
	number, extent, size int
}

// isoRecord is an entry of a directory: a file, or a directory of the same tree.
type isoRecord struct {
	id   []byte
	file *isoNode
	dir  *isoDir
	// system are the entries of Rock Ridge, and more those that have no room in the record.
	system, more []byte
}

// isoImage is a medium that is being written.
type isoImage struct {
	data []byte
	time time.Time
}

// buildISO returns an ISO 9660 image with unchanged file names: Rock Ridge for Linux, Joliet for Windows. The library
// go-diskfs writes no Joliet tree with subdirectories.
func buildISO(label string, files map[string][]byte) ([]byte, error) {
	root, err := isoTree(files)
	if err != nil {
		return nil, err
	}
	image := &isoImage{data: make([]byte, (firstDescriptor+descriptors)*isoBlock), time: time.Now().UTC()}
	trees := [][]*isoDir{layOut(root, false), layOut(root, true)}
	var tables [2][2]int // the first sector of each path table, in both byte orders
	for i, dirs := range trees {
		size := len(pathTable(dirs, binary.LittleEndian))
		tables[i] = [2]int{image.reserve(size), image.reserve(size)}
		for _, dir := range dirs {
			dir.extent = image.reserve(dir.size)
		}
	}
	image.writeContents(root)
	for i, dirs := range trees {
		image.writeDirs(dirs)
		image.write(tables[i][0], pathTable(dirs, binary.LittleEndian))
		image.write(tables[i][1], pathTable(dirs, binary.BigEndian))
	}
	for i, dirs := range trees { // Last: they contain the medium's size.
		image.write(firstDescriptor+i, image.descriptor(label, dirs, tables[i], i == 1))
	}
	image.write(firstDescriptor+descriptors-1, append([]byte{255}, "CD001\x01"...))
	return image.data, nil
}

// isoTree returns the files as a tree.
func isoTree(files map[string][]byte) (*isoNode, error) {
	root := &isoNode{dir: true}
	dirs := map[string]*isoNode{".": root}
	var dirOf func(name string) *isoNode
	dirOf = func(name string) *isoNode {
		if dirs[name] == nil {
			parent := dirOf(path.Dir(name))
			dirs[name] = &isoNode{name: path.Base(name), dir: true}
			parent.children = append(parent.children, dirs[name])
		}
		return dirs[name]
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if !isoName(name) {
			return nil, fmt.Errorf("the medium cannot have a file %.256q", name)
		}
		if len(dirs)+strings.Count(name, "/") > maxDirs {
			return nil, fmt.Errorf("the medium's files are in more than %d directories", maxDirs)
		}
		dir := dirOf(path.Dir(name))
		dir.children = append(dir.children, &isoNode{name: path.Base(name), content: files[name]})
	}
	return root, nil
}

// isoName reports whether a medium can have a file with a path.
func isoName(name string) bool {
	for part := range strings.SplitSeq(name, "/") {
		if part == "" || part == "." || part == ".." || len(part) > maxNameBytes {
			return false
		}
	}
	return true
}

// layOut returns the directories of a tree in the order of its path table, by level, parent and name, with their sizes.
func layOut(root *isoNode, joliet bool) []*isoDir {
	top := &isoDir{node: root, id: []byte{0}, number: 1}
	top.parent = top
	dirs := []*isoDir{top}
	for i := 0; i < len(dirs); i++ {
		dir := dirs[i]
		var ids [][]byte
		if joliet {
			ids = jolietNames(dir.node.children)
		} else {
			ids = primaryNames(dir.node.children)
		}
		for j, node := range dir.node.children {
			dir.records = append(dir.records, isoRecord{id: ids[j], file: node})
		}
		slices.SortFunc(dir.records, func(a, b isoRecord) int { return slices.Compare(a.id, b.id) })
		for j := range dir.records {
			if r := &dir.records[j]; r.file.dir {
				r.dir = &isoDir{parent: dir, node: r.file, id: r.id, number: len(dirs) + 1}
				dirs = append(dirs, r.dir)
			}
		}
		dir.records = append([]isoRecord{{id: []byte{0}, file: dir.node, dir: dir},
			{id: []byte{1}, file: dir.parent.node, dir: dir.parent}}, dir.records...)
		if !joliet {
			addRockRidge(dir)
		}
		for j := range dir.records {
			dir.size += sectorGap(dir.size, dir.records[j].length()) + dir.records[j].length()
		}
		dir.size = int(alignUp(uint64(dir.size), isoBlock))
	}
	return dirs
}

// sectorGap returns how many bytes are left free before what follows an offset, which has to be within a sector.
func sectorGap(offset, length int) int {
	if left := isoBlock - offset%isoBlock; left < length {
		return left
	}
	return 0
}

// reserve returns the first of new sectors for a number of bytes.
func (m *isoImage) reserve(size int) int {
	first := len(m.data) / isoBlock
	m.data = append(m.data, make([]byte, alignUp(uint64(size), isoBlock))...)
	return first
}

func (m *isoImage) write(sector int, content []byte) { copy(m.data[sector*isoBlock:], content) }

// writeContents writes the contents of files.
func (m *isoImage) writeContents(node *isoNode) {
	if !node.dir {
		node.extent = m.reserve(len(node.content))
		m.write(node.extent, node.content)
	}
	for _, child := range node.children {
		m.writeContents(child)
	}
}

// writeDirs writes the directories of a tree, and what has no room in the records of Rock Ridge.
func (m *isoImage) writeDirs(dirs []*isoDir) {
	sector, offset := 0, isoBlock // of what has no room
	for _, dir := range dirs {
		at := dir.extent * isoBlock
		for i := range dir.records {
			r := &dir.records[i]
			if len(r.more) > 0 {
				if sectorGap(offset, len(r.more)) > 0 || offset == isoBlock {
					sector, offset = m.reserve(isoBlock), 0
				}
				copy(m.data[sector*isoBlock+offset:], r.more)
				continueAt(r.system, sector, offset, len(r.more))
				offset += len(r.more)
			}
			at += sectorGap(at, r.length())
			at += copy(m.data[at:], m.record(r))
		}
	}
}

// length returns the length of a directory record. It is even, and so is where the entries of Rock Ridge are.
func (r *isoRecord) length() int { return even(even(recordHead+len(r.id)) + len(r.system)) }

func even(n int) int { return n + n&1 }

// record returns a directory record (9.1).
func (m *isoImage) record(r *isoRecord) []byte {
	extent, size, flags := r.file.extent, len(r.file.content), byte(0)
	if r.dir != nil {
		extent, size, flags = r.dir.extent, r.dir.size, 2
	}
	out := make([]byte, r.length())
	out[0] = byte(len(out))
	putBoth32(out[2:], extent)
	putBoth32(out[10:], size)
	copy(out[18:], []byte{
		byte(m.time.Year() - 1900), byte(m.time.Month()), byte(m.time.Day()), byte(m.time.Hour()), byte(m.time.Minute()),
		byte(m.time.Second()), 0,
	})
	out[25] = flags
	putBoth16(out[28:], 1)
	out[32] = byte(len(r.id))
	copy(out[recordHead:], r.id)
	copy(out[even(recordHead+len(r.id)):], r.system)
	return out
}

// pathTable returns the path table of a tree (9.4).
func pathTable(dirs []*isoDir, order binary.AppendByteOrder) []byte {
	var out []byte
	for _, dir := range dirs {
		out = append(out, byte(len(dir.id)), 0)
		out = order.AppendUint32(out, uint32(dir.extent))
		out = order.AppendUint16(out, uint16(dir.parent.number))
		out = append(out, dir.id...)
		if len(dir.id)%2 == 1 {
			out = append(out, 0)
		}
	}
	return out
}

// descriptor returns the volume descriptor of a tree (8.4), or the supplementary one of Joliet (8.5).
func (m *isoImage) descriptor(label string, dirs []*isoDir, tables [2]int, joliet bool) []byte {
	out := make([]byte, isoBlock)
	text := func(from, to int, value string) {
		field := []byte(value)
		if joliet {
			field = utf16BE(value)
		}
		for i := from; i < to; i++ {
			out[i] = ' '
			if joliet && (i-from)%2 == 0 {
				out[i] = 0
			}
		}
		if joliet && (to-from)%2 == 1 {
			out[to-1] = 0
		}
		copy(out[from:to], field)
	}
	out[0] = 1
	copy(out[1:], "CD001\x01")
	if joliet {
		out[0] = 2
		copy(out[88:], "%/E") // UCS-2 level 3
	}
	text(8, 40, "")
	text(40, 40+maxLabelBytes, label)
	putBoth32(out[80:], len(m.data)/isoBlock)
	putBoth16(out[120:], 1)
	putBoth16(out[124:], 1)
	putBoth16(out[128:], isoBlock)
	putBoth32(out[132:], len(pathTable(dirs, binary.LittleEndian)))
	binary.LittleEndian.PutUint32(out[140:], uint32(tables[0]))
	binary.BigEndian.PutUint32(out[148:], uint32(tables[1]))
	copy(out[156:], m.record(&isoRecord{id: []byte{0}, file: dirs[0].node, dir: dirs[0]}))
	for _, field := range [][2]int{{190, 318}, {318, 446}, {446, 574}, {574, 702}, {702, 739}, {739, 776}, {776, 813}} {
		text(field[0], field[1], "")
	}
	for _, date := range []int{813, 830} { // created and changed; the others are not given
		copy(out[date:], m.time.Format("20060102150405")+"00\x00")
	}
	for _, date := range []int{847, 864} {
		copy(out[date:], strings.Repeat("0", 16)+"\x00")
	}
	out[881] = 1
	return out
}

// putBoth32 and putBoth16 write a number in both byte orders (7.3.3, 7.2.3).
func putBoth32(to []byte, n int) {
	binary.LittleEndian.PutUint32(to, uint32(n))
	binary.BigEndian.PutUint32(to[4:], uint32(n))
}

func putBoth16(to []byte, n int) {
	binary.LittleEndian.PutUint16(to, uint16(n))
	binary.BigEndian.PutUint16(to[2:], uint16(n))
}
