// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package nbdserver is an NBD server for tests, with one disk in memory: what QEMU serves during a pull.
package nbdserver

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync/atomic"
)

// BlockSize is the size of the blocks of a Disk, which all requests must consist of.
const BlockSize = 512

// Disk is a disk of a guest.
type Disk struct {
	// Export is the name of the export.
	Export string
	// Data is the content. Blocks that are zero are reported as such.
	Data []byte
	// Bitmap is the name of the metadata context with what has changed, and Dirty are the numbers of the changed blocks.
	Bitmap string
	Dirty  map[int]bool
	// MaxExtents is how many extents a reply has at most. Zero means no limit.
	MaxExtents int
	// Fails makes all reads fail.
	Fails atomic.Bool
	// Sessions counts the sessions that were opened.
	Sessions atomic.Int32
}

// conn is one session.
type conn struct {
	net.Conn
	disk *Disk
	// contexts are the selected metadata contexts by their IDs.
	contexts map[uint32]string
}

// Serve has one session, which ends when the client closes the connection.
func (d *Disk) Serve(c net.Conn) error {
	s := &conn{Conn: c, disk: d, contexts: map[uint32]string{}}
	if err := s.send(uint64(0x4e42444d41474943), uint64(0x49484156454f5054), uint16(3)); err != nil {
		return err
	}
	if _, err := s.read(4); err != nil {
		return err
	}
	for done := false; !done; {
		var err error
		if done, err = s.option(); err != nil {
			return err
		}
	}
	d.Sessions.Add(1)
	for {
		if err := s.request(); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
	}
}

func (s *conn) send(values ...any) error {
	var out []byte
	for _, value := range values {
		if raw, is := value.([]byte); is {
			out = append(out, raw...)
			continue
		}
		out, _ = binary.Append(out, binary.BigEndian, value)
	}
	_, err := s.Write(out)
	return err
}

func (s *conn) read(n uint32) ([]byte, error) {
	raw := make([]byte, n)
	_, err := io.ReadFull(s, raw)
	return raw, err
}

func (s *conn) reply(option, kind uint32, data []byte) error {
	return s.send(uint64(0x0003e889045565a9), option, kind, uint32(len(data)), data)
}

// option serves one option, and reports whether it ends the negotiation.
func (s *conn) option() (done bool, err error) {
	head, err := s.read(16)
	if err != nil {
		return false, err
	}
	option := binary.BigEndian.Uint32(head[8:])
	data, err := s.read(binary.BigEndian.Uint32(head[12:]))
	if err != nil {
		return false, err
	}
	switch option {
	case 8: // structured replies
		return false, s.reply(option, 1, nil)
	case 10: // metadata contexts
		return false, s.selectContexts(option, data)
	case 7: // go
		name, _ := text(data)
		if name != s.disk.Export {
			return false, s.reply(option, 1<<31+6, nil)
		}
		info, _ := binary.Append(nil, binary.BigEndian, uint16(0))
		info, _ = binary.Append(info, binary.BigEndian, uint64(len(s.disk.Data)))
		info, _ = binary.Append(info, binary.BigEndian, uint16(1))
		sizes, _ := binary.Append(nil, binary.BigEndian, []uint16{3})
		sizes, _ = binary.Append(sizes, binary.BigEndian, []uint32{BlockSize, BlockSize, 1 << 20})
		return true, errors.Join(s.reply(option, 3, sizes), s.reply(option, 3, info), s.reply(option, 1, nil))
	default:
		return false, s.reply(option, 1<<31+1, nil)
	}
}

// text returns the text at the beginning, and what follows it.
func text(data []byte) (string, []byte) {
	n := binary.BigEndian.Uint32(data)
	return string(data[4 : 4+n]), data[4+n:]
}

// selectContexts selects those contexts that exist.
func (s *conn) selectContexts(option uint32, data []byte) error {
	_, rest := text(data)
	count := binary.BigEndian.Uint32(rest)
	rest = rest[4:]
	for id := range count {
		var name string
		name, rest = text(rest)
		if name != "base:allocation" && name != s.disk.Bitmap {
			continue
		}
		s.contexts[id] = name
		if err := s.reply(option, 4, append(binary.BigEndian.AppendUint32(nil, id), name...)); err != nil {
			return err
		}
	}
	return s.reply(option, 1, nil)
}

func (s *conn) request() error {
	head, err := s.read(28)
	if err != nil {
		return err
	}
	command, cookie := binary.BigEndian.Uint16(head[6:]), binary.BigEndian.Uint64(head[8:])
	offset, length := binary.BigEndian.Uint64(head[16:]), uint64(binary.BigEndian.Uint32(head[24:]))
	switch {
	case s.disk.Fails.Load() || offset%BlockSize != 0 || length%BlockSize != 0 || offset+length > uint64(len(s.disk.Data)):
		return s.chunk(1, 1<<15+1, cookie, []byte{0, 0, 0, 5, 0, 0})
	case command == 0:
		return s.chunk(1, 1, cookie, append(binary.BigEndian.AppendUint64(nil, offset), s.disk.Data[offset:offset+length]...))
	case command == 7:
		for id, name := range s.contexts {
			if err := s.chunk(0, 5, cookie, s.status(id, name, offset, length)); err != nil {
				return err
			}
		}
		return s.chunk(1, 0, cookie, nil)
	default:
		return errors.New("unknown command")
	}
}

func (s *conn) chunk(flags, kind uint16, cookie uint64, data []byte) error {
	return s.send(uint32(0x668e33ef), flags, kind, cookie, uint32(len(data)), data)
}

// status returns the extents of a context.
func (s *conn) status(id uint32, name string, offset, length uint64) []byte {
	out := binary.BigEndian.AppendUint32(nil, id)
	extents, last, size := 0, uint32(0), uint32(0)
	for at := offset; at < offset+length; at += BlockSize {
		flags := s.flags(name, at)
		if size > 0 && flags != last {
			out = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(out, size), last)
			extents, size = extents+1, 0
			if extents == s.disk.MaxExtents {
				return out
			}
		}
		last, size = flags, size+BlockSize
	}
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(out, size), last)
}

func (s *conn) flags(name string, at uint64) uint32 {
	if name == s.disk.Bitmap {
		if s.disk.Dirty[int(at/BlockSize)] {
			return 1
		}
		return 0
	}
	for _, b := range s.disk.Data[at : at+BlockSize] {
		if b != 0 {
			return 0
		}
	}
	return 3
}
