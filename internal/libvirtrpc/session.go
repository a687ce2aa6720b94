// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package libvirtrpc

import (
	"encoding/binary"
	"fmt"
	"io"
	"sync"
)

// Kind is what a message from a daemon is to its client.
type Kind int

// Kinds of messages.
const (
	// KindReply answers a call, or ends a stream that the client writes to.
	KindReply Kind = iota
	// KindEvent is one of those that the client has registered for.
	KindEvent
	// KindKeepAlive asks whether the client is there, or says that the daemon is.
	KindKeepAlive
)

// Admit decides about a message from the daemon, of which only the header has been read: false drops it, an error ends the session. It
// may block to slow the daemon down.
type Admit func(kind Kind, size int) (bool, error)

const (
	// BufferBytes is how much Calls and Answers have of a message at a time.
	BufferBytes = 32 << 10
	// MaxEvent caps an event. It carries a domain's name, a few short strings and at most one path, which has up to 4 KiB.
	MaxEvent = 8 << 10

	procStorageVolUpload = 208
)

// eventMessages are the messages by which the daemon reports events, by the event's id (virDomainEventID; REMOTE_PROC_DOMAIN_EVENT_CALLBACK_…
// in src/remote/remote_protocol.x). They are those that virt-handler registers for.
var eventMessages = map[int32]int32{
	eventIDLifecycle: procEventLifecycleMessage,
	7:                324, // an I/O error with its reason
	13:               331, // the size of the balloon
	18:               348, // the guest agent comes and goes
	23:               379, // the domain's metadata, in which a freeze is noted
}

// Session follows what a client of libvirt asks its daemon for, so that nothing reaches the client but answers to that and the events
// that it has registered for. The C library, which parses what comes through, runs with the agent's rights.
type Session struct {
	mu sync.Mutex
	// waiting are the calls without an answer, by their serial.
	waiting map[uint32]calledFor
	// uploads are the serials of streams that the client writes to. All that the daemon says on one is how it ended.
	uploads map[uint32]bool
	// events are the procedures of messages that may come.
	events map[int32]bool
}

type calledFor struct {
	program uint32
	proc    int32
}

// NewSession makes a Session for one connection.
func NewSession() *Session {
	return &Session{waiting: map[uint32]calledFor{}, uploads: map[uint32]bool{}, events: map[int32]bool{}}
}

// Calls copies what the client sends, and notes what may come back for it. It ends with io.EOF between two messages, or with what went
// wrong.
func (s *Session) Calls(to io.Writer, from io.Reader) error {
	buffer := make([]byte, BufferBytes)
	for {
		h, size, err := readHeader(from, buffer)
		if err != nil {
			return err
		}
		known := headerSize
		if h.kind == typeCall && h.program == programRemote && h.proc == procEventRegisterAny && size >= headerSize+4 {
			// Before the call is sent: the first event may come before the answer.
			if n, err := io.ReadFull(from, buffer[headerSize:headerSize+4]); err != nil {
				return fmt.Errorf("a message ends after %d bytes: %w", headerSize+n, io.ErrUnexpectedEOF)
			}
			known += 4
			s.register(int32(binary.BigEndian.Uint32(buffer[headerSize:])))
		}
		if h.kind == typeCall {
			s.expect(h)
		}
		if err := copyMessage(to, from, buffer, known, size); err != nil {
			return err
		}
	}
}

// Answers copies what the daemon sends, as far as it belongs to what the client asked for and is admitted. Anything else ends it
// with ErrRefused, without a byte of it passed on.
func (s *Session) Answers(to io.Writer, from io.Reader, admit Admit) error {
	buffer := make([]byte, BufferBytes)
	for {
		h, size, err := readHeader(from, buffer)
		if err != nil {
			return err
		}
		kind, err := s.judge(h, size)
		if err != nil {
			return err
		}
		pass, err := admit(kind, size)
		if err != nil {
			return err
		}
		into := to
		if !pass {
			into = io.Discard
		}
		if err := copyMessage(into, from, buffer, headerSize, size); err != nil {
			return err
		}
	}
}

func (s *Session) register(event int32) {
	if proc, ok := eventMessages[event]; ok {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.events[proc] = true
	}
}

func (s *Session) expect(h header) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting[h.serial] = calledFor{h.program, h.proc}
	if h.program == programRemote && h.proc == procStorageVolUpload {
		s.uploads[h.serial] = true
	}
}

// judge says what a message is, or why it must not reach the client.
func (s *Session) judge(h header, size int) (Kind, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case h.program == programKeepAlive && h.kind == typeMessage && size == headerSize:
		return KindKeepAlive, nil
	case h.kind == typeReply && s.waiting[h.serial] == calledFor{h.program, h.proc} && h.program != 0:
		delete(s.waiting, h.serial)
		if h.status != statusOK {
			delete(s.uploads, h.serial)
		}
		return KindReply, nil
	case h.kind == typeStream && h.status != statusContinue && s.uploads[h.serial]:
		delete(s.uploads, h.serial)
		return KindReply, nil
	case h.kind == typeMessage && h.program == programRemote && s.events[h.proc] && size <= MaxEvent:
		return KindEvent, nil
	default:
		return 0, fmt.Errorf("%w: nobody asked for program %#x, procedure %d, type %d, serial %d, %d bytes",
			ErrRefused, h.program, h.proc, h.kind, h.serial, size)
	}
}

// readHeader reads the length and the header of a message into the buffer.
func readHeader(from io.Reader, buffer []byte) (header, int, error) {
	head := buffer[:headerSize]
	if _, err := io.ReadFull(from, head); err != nil {
		return header{}, 0, err
	}
	size := binary.BigEndian.Uint32(head)
	d := decoder{buf: head[4:]}
	program, version := d.u32(), d.u32()
	h := header{program: program, proc: d.i32(), kind: d.u32(), serial: d.u32(), status: d.u32()}
	if size < headerSize || size > maxMessage {
		return h, 0, fmt.Errorf("%w: its length is %d, not between %d and %d", ErrRefused, size, headerSize, maxMessage)
	}
	if version != protocolVersion {
		return h, 0, fmt.Errorf("%w: version %d of program %#x", ErrRefused, version, program)
	}
	return h, int(size), nil
}

// copyMessage passes on a message of which the first bytes are in the buffer, piece by piece.
func copyMessage(to io.Writer, from io.Reader, buffer []byte, known, size int) error {
	if _, err := to.Write(buffer[:known]); err != nil {
		return err
	}
	rest := int64(size - known)
	n, err := io.CopyBuffer(struct{ io.Writer }{to}, io.LimitReader(from, rest), buffer)
	if err == nil && n != rest {
		err = io.ErrUnexpectedEOF
	}
	return err
}
