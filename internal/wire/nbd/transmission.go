// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package nbd

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/vireo-project/vireo/internal/component/printable"
)

// Extent is a range of blocks with the same status, which follows the extent before it.
type Extent struct {
	// Length is the number of bytes.
	Length uint64
	// Flags are those of the metadata context.
	Flags uint32
}

// Flags of extents: of AllocationContext, and of a context of BitmapContext.
const (
	// Hole is not allocated, and Zero reads as zeros.
	Hole uint32 = 1 << 0
	Zero uint32 = 1 << 1
	// Dirty has changed.
	Dirty uint32 = 1 << 0
)

// AllocationContext is the metadata context with what is allocated.
const AllocationContext = "base:allocation"

// BitmapContext returns the metadata context of one of QEMU's bitmaps.
func BitmapContext(bitmap string) string { return "qemu:dirty-bitmap:" + bitmap }

// send sends a request.
func (c *Client) send(command uint16, offset uint64, length uint32) error {
	c.cookie++
	request := binary.BigEndian.AppendUint32(nil, magicRequest)
	request = binary.BigEndian.AppendUint16(request, 0)
	request = binary.BigEndian.AppendUint16(request, command)
	request = binary.BigEndian.AppendUint64(request, c.cookie)
	request = binary.BigEndian.AppendUint64(request, offset)
	return c.write(binary.BigEndian.AppendUint32(request, length))
}

// check returns an error for a request that the export cannot have.
func (c *Client) check(offset, length uint64) error {
	block := uint64(c.blockSize)
	switch {
	case length == 0 || offset > c.size || length > c.size-offset:
		return fmt.Errorf("%d bytes at %d are not in the NBD export, which has %d", length, offset, c.size)
	case offset%block != 0 || length%block != 0:
		return fmt.Errorf("%d bytes at %d are no multiple of the NBD export's blocks of %d", length, offset, block)
	}
	return nil
}

// Read fills a buffer with the bytes at an offset. It reads no more than MaxRead at once, and only whole blocks.
func (c *Client) Read(buffer []byte, offset uint64) error {
	length := uint64(len(buffer))
	if err := c.check(offset, length); err != nil {
		return err
	}
	if length > uint64(c.maxRequest) {
		return fmt.Errorf("%d bytes are requested of an NBD export that gives at most %d at once", length, c.maxRequest)
	}
	c.limit()
	defer c.unlimit()
	if err := c.send(cmdRead, offset, uint32(length)); err != nil {
		return err
	}
	to := &target{in: c.in, buffer: buffer, offset: offset}
	err := c.replies(to.simple, to.chunk)
	if err == nil {
		err = to.complete()
	}
	return err
}

// Status returns the extents of each context from an offset on, at least one. Together they may have fewer bytes than
// requested, but not more, and those of the contexts may have different lengths.
func (c *Client) Status(offset, length uint64) (map[string][]Extent, error) {
	if !c.structured || len(c.contexts) == 0 {
		return nil, errors.New("the NBD server has no status of blocks")
	}
	length = min(length, maxStatus)
	if err := c.check(offset, length); err != nil {
		return nil, err
	}
	c.limit()
	defer c.unlimit()
	if err := c.send(cmdBlockStatus, offset, uint32(length)); err != nil {
		return nil, err
	}
	status := map[string][]Extent{}
	err := c.replies(func() error { return errors.New("the reply to a request for the status of blocks has none") },
		func(kind uint16, size uint32) error {
			return c.extents(kind, size, length, status)
		})
	if err == nil && len(status) != len(c.contexts) {
		err = errors.New("the reply lacks the status of a context")
	}
	if err != nil {
		return nil, err
	}
	return status, nil
}

// extents reads the chunk with the extents of one context.
func (c *Client) extents(kind uint16, size uint32, limit uint64, status map[string][]Extent) error {
	if kind != chunkBlockStatus || size < 12 || (size-4)%8 != 0 || (size-4)/8 > maxExtents {
		return fmt.Errorf("a chunk of type %d with %d bytes is no status of blocks", kind, size)
	}
	raw := make([]byte, size)
	if _, err := io.ReadFull(c.in, raw); err != nil {
		return err
	}
	name, known := c.contexts[binary.BigEndian.Uint32(raw)]
	if !known || status[name] != nil {
		return errors.New("the status of a context was not requested, or is there twice")
	}
	extents := make([]Extent, 0, len(raw)/8)
	for raw = raw[4:]; len(raw) > 0 && limit > 0; raw = raw[8:] {
		length := uint64(binary.BigEndian.Uint32(raw))
		if length == 0 || length%uint64(c.blockSize) != 0 {
			return fmt.Errorf("an extent has %d bytes, which are no blocks", length)
		}
		length = min(length, limit) // The last one may be longer than requested.
		limit -= length
		extents = append(extents, Extent{Length: length, Flags: binary.BigEndian.Uint32(raw[4:])})
	}
	status[name] = extents
	return nil
}

// replies reads the reply to the last request: a simple one, or the chunks of a structured one. The functions read the
// data of a reply without an error.
func (c *Client) replies(simple func() error, chunk func(kind uint16, size uint32) error) error {
	var failed *ServerError
	for range maxChunks {
		done, refusal, err := c.reply(simple, chunk)
		if err != nil {
			return err
		}
		if failed == nil {
			failed = refusal
		}
		if done && failed != nil {
			return failed
		}
		if done {
			return nil
		}
	}
	return fmt.Errorf("a reply has more than %d chunks", maxChunks)
}

// reply reads a simple reply or a chunk, and returns whether it is the last one, and the server's error if it has one.
func (c *Client) reply(
	simple func() error, chunk func(kind uint16, size uint32) error,
) (done bool, refusal *ServerError, err error) {
	raw := make([]byte, 20)
	if _, err := io.ReadFull(c.in, raw[:16]); err != nil {
		return false, nil, err
	}
	// The cookie is at the same place in both.
	if binary.BigEndian.Uint64(raw[8:]) != c.cookie {
		return false, nil, errors.New("a reply is not that to the last request")
	}
	switch binary.BigEndian.Uint32(raw) {
	case magicSimple:
		if code := binary.BigEndian.Uint32(raw[4:]); code != 0 {
			return true, &ServerError{Code: code}, nil
		}
		return true, nil, simple()
	case magicStructured:
		if !c.structured {
			return false, nil, errors.New("a reply is structured, which was not negotiated")
		}
	default:
		return false, nil, errors.New("a reply has the wrong magic number")
	}
	if _, err := io.ReadFull(c.in, raw[16:]); err != nil {
		return false, nil, err
	}
	flags, kind, size := binary.BigEndian.Uint16(raw[4:]), binary.BigEndian.Uint16(raw[6:]),
		binary.BigEndian.Uint32(raw[16:])
	done = flags&chunkDone != 0
	switch {
	case kind == chunkNone && (size != 0 || !done):
		err = errors.New("an empty chunk has data, or is not the last one")
	case kind == chunkNone:
	case kind&chunkError != 0:
		refusal, err = c.refusal(size)
	default:
		err = chunk(kind, size)
	}
	return done, refusal, err
}

// refusal reads the error in a chunk.
func (c *Client) refusal(size uint32) (*ServerError, error) {
	if size < 6 || size > maxError+16 {
		return nil, fmt.Errorf("an error has %d bytes", size)
	}
	raw := make([]byte, size)
	if _, err := io.ReadFull(c.in, raw); err != nil {
		return nil, err
	}
	code, length := binary.BigEndian.Uint32(raw), int(binary.BigEndian.Uint16(raw[4:]))
	if code == 0 || length > len(raw)-6 {
		return nil, errors.New("an error is not valid")
	}
	return &ServerError{Code: code, Text: printable.Text(string(raw[6:6+length]), maxError)}, nil
}

// target is the buffer of a read.
type target struct {
	in     io.Reader
	buffer []byte
	offset uint64
	// filled are the parts that a chunk has filled, in order.
	filled []part
}

// part is a part of a buffer.
type part struct{ start, end uint64 }

// simple reads the data of a simple reply.
func (t *target) simple() error {
	if len(t.filled) > 0 {
		return errors.New("a simple reply follows the chunk of a structured one")
	}
	t.filled = append(t.filled, part{0, uint64(len(t.buffer))})
	_, err := io.ReadFull(t.in, t.buffer)
	return err
}

// chunk reads a chunk with data or a hole.
func (t *target) chunk(kind uint16, size uint32) error {
	raw := make([]byte, 12)
	head := 8
	if kind == chunkHole {
		head = 12
	}
	if kind != chunkData && kind != chunkHole || uint64(size) < uint64(head) || kind == chunkHole && size != 12 {
		return fmt.Errorf("a chunk of type %d with %d bytes has no data", kind, size)
	}
	if _, err := io.ReadFull(t.in, raw[:head]); err != nil {
		return err
	}
	length := uint64(size) - 8
	if kind == chunkHole {
		length = uint64(binary.BigEndian.Uint32(raw[8:]))
	}
	into, err := t.take(binary.BigEndian.Uint64(raw), length)
	if err != nil {
		return err
	}
	if kind == chunkHole {
		clear(into)
		return nil
	}
	_, err = io.ReadFull(t.in, into)
	return err
}

// take returns a part of the buffer that no chunk has filled yet.
func (t *target) take(offset, length uint64) ([]byte, error) {
	size := uint64(len(t.buffer))
	if offset < t.offset || length == 0 || length > size || offset-t.offset > size-length {
		return nil, errors.New("a chunk has bytes that were not requested")
	}
	start := offset - t.offset
	at, _ := slices.BinarySearchFunc(t.filled, start,
		func(p part, start uint64) int { return cmp.Compare(p.start, start) })
	if at < len(t.filled) && t.filled[at].start < start+length || at > 0 && t.filled[at-1].end > start {
		return nil, errors.New("two chunks have the same bytes")
	}
	t.filled = slices.Insert(t.filled, at, part{start, start + length})
	return t.buffer[start : start+length], nil
}

// complete returns an error unless all of the buffer is filled. Parts do not overlap, so their lengths suffice.
func (t *target) complete() error {
	missing := uint64(len(t.buffer))
	for _, p := range t.filled {
		missing -= p.end - p.start
	}
	if missing > 0 {
		return fmt.Errorf("the reply to a read lacks %d bytes", missing)
	}
	return nil
}
