// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/wire/nbd"
)

// diskName is the file with the disk of a VM.
const diskName = "disk.img"

// copyBuffer is the size of reads.
const copyBuffer = 256 << 10

// disk serves the disk of a VM.
type disk struct {
	// mount is a device, or the directory of the file disk.img.
	mount   string
	block   bool
	version string
}

// open opens the disk, and returns its size, and a tag and a time that change with its content.
func (d disk) open() (file *os.File, size int64, tag string, modified time.Time, err error) {
	if d.block {
		file, size, err = openDevice(d.mount)
		return file, size, d.version, time.Time{}, err
	}
	root, err := os.OpenRoot(d.mount)
	if err != nil {
		return nil, 0, "", time.Time{}, err
	}
	defer closeAll(root)
	file, info, err := openFile(root, diskName)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, "", time.Time{}, &problem{http.StatusNotFound,
			"the volume has no file " + diskName + ": it has never been used by a VM"}
	}
	if err != nil {
		return nil, 0, "", time.Time{}, err
	}
	tag = fmt.Sprintf("%x-%x-%x", inode(info), info.Size(), info.ModTime().UnixNano())
	return file, info.Size(), tag, info.ModTime(), nil
}

// raw serves the bytes of the disk. A download can be continued: the tag stays the same as long as the disk does not
// change.
func (d disk) raw(w http.ResponseWriter, r *http.Request) error {
	file, size, tag, modified, err := d.open()
	if err != nil {
		return err
	}
	defer closeAll(file)
	w.Header().Set("Etag", `"`+tag+`"`)
	w.Header().Set("Content-Type", "application/octet-stream")
	http.ServeContent(w, r, diskName, modified, io.NewSectionReader(file, 0, size))
	return nil
}

// compressed serves the compressed bytes of the disk. Their number is not known in advance.
func (d disk) compressed(w http.ResponseWriter, r *http.Request) error {
	file, size, _, _, err := d.open()
	if err != nil {
		return err
	}
	defer closeAll(file)
	w.Header().Set("Content-Type", "application/gzip")
	if r.Method == http.MethodHead {
		return nil
	}
	out, err := gzip.NewWriterLevel(w, gzip.BestSpeed)
	if err != nil {
		return err
	}
	if err := copyExactly(out, file, size); err != nil {
		return err
	}
	return out.Close()
}

// copyExactly copies size bytes, the size of the file when it was opened.
func copyExactly(to io.Writer, from io.Reader, size int64) error {
	n, err := io.CopyBuffer(onlyWriter{to}, io.LimitReader(from, size), make([]byte, copyBuffer))
	if err == nil && n < size {
		err = fmt.Errorf("it became shorter while it was read: %d of %d bytes were read", n, size)
	}
	return err
}

// onlyWriter hides ReadFrom, which would not use the buffer.
type onlyWriter struct{ io.Writer }

// openDevice opens a block device, which the kubelet has created.
func openDevice(name string) (*os.File, int64, error) {
	file, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0) //nolint:gosec // the kubelet has created it
	if err != nil {
		return nil, 0, err
	}
	info, err := file.Stat()
	if err == nil && (info.Mode()&fs.ModeDevice == 0 || info.Mode()&fs.ModeCharDevice != 0) {
		err = fmt.Errorf("%s is not a block device", name)
	}
	var size int64
	if err == nil {
		size, err = file.Seek(0, io.SeekEnd)
	}
	if err == nil {
		_, err = file.Seek(0, io.SeekStart)
	}
	if err != nil {
		closeAll(file)
		return nil, 0, err
	}
	return file, size, nil
}

// errIrregular is the error for what is neither a regular file nor a directory.
var errIrregular = &problem{http.StatusForbidden, "it is neither a regular file nor a directory, and is not served"}

// openFile opens a regular file below a root. Nothing else is opened: opening a FIFO blocks, and opening a device may
// do anything. Links are not followed at the end of the name, and not out of the root at all.
func openFile(root *os.Root, name string) (*os.File, fs.FileInfo, error) {
	before, err := root.Lstat(name)
	if err != nil {
		return nil, nil, err
	}
	if !before.Mode().IsRegular() {
		return nil, nil, errIrregular
	}
	// The file may be replaced at this moment. Without O_NONBLOCK, opening a FIFO would block.
	file, err := root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, err
	}
	info, err := file.Stat()
	if err == nil && (!info.Mode().IsRegular() || !os.SameFile(before, info)) {
		err = errIrregular
	}
	if err != nil {
		closeAll(file)
		return nil, nil, err
	}
	return file, info, nil
}

func inode(info fs.FileInfo) uint64 {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return stat.Ino
	}
	return 0
}

// closeAll closes a file that was only read, whose error does not matter.
func closeAll(c io.Closer) { _ = c.Close() }

// Types of blocks. KubeVirt's, which are flags of NBD.
const (
	// typeHole is not allocated; only in backups of all data. typeDirty has changed; only in incremental ones. typeZero
	// reads as zeros.
	typeHole  = 1
	typeDirty = 1
	typeZero  = 2
)

// mapTime is how long a request for a list of blocks may read more of them from QEMU.
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
	l.Extents = append(l.Extents, block{Offset: r.start, Length: r.end - r.start, Type: kind,
		Description: descriptionOf(kind, l.changes != "")})
	l.at = r.end
	return true
}

// stop ends the page before the end of the range.
func (l *listing) stop() { l.NextOffset = &l.at }
