// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package libvirtwire

import (
	"encoding/binary"
	"fmt"
	"io"
	"sync"
)

// Kind is the kind of a message from a daemon.
type Kind int

// Kinds of messages.
const (
	// KindReply is the response to a call, or the end of a stream that the client writes to.
	KindReply Kind = iota
	// KindEvent is an event that the client has registered for.
	KindEvent
	// KindKeepAlive is a ping or its response.
	KindKeepAlive
)

// Admit decides whether to forward a message from the daemon, of which only the header has been read: false drops it,
// an error ends the session. It may block to throttle the daemon.
type Admit func(kind Kind, size int) (bool, error)

const (
	// BufferBytes is the size of the buffers of Calls and Responses.
	BufferBytes = 32 << 10
	// MaxEvent is the limit for an event in bytes. It contains a domain's name, a few short strings and at most one path,
	// which has up to 4 KiB.
	MaxEvent = 8 << 10

	procStorageVolUpload = 208
)

// eventMessages are the procedures of the messages for events, by the event's id (virDomainEventID;
// REMOTE_PROC_DOMAIN_EVENT_CALLBACK_… in src/remote/remote_protocol.x). They are those that virt-handler registers for.
var eventMessages = map[int32]int32{
	eventIDLifecycle: procEventLifecycleMessage,
	7:                324, // an I/O error with its reason
	13:               331, // the size of the balloon
	15:               333, // a device was removed
	18:               348, // the guest agent connects and disconnects
	23:               379, // the domain's metadata, which contains freezes
	26:               438, // how much memory the guest has taken from a memory device
}

// Session tracks the calls of a client of libvirt, so that only their responses and the events that the client has
// registered for are forwarded to it. The C library, which parses what is forwarded, runs in the agent, which controls
// all guests of the node.
type Session struct {
	mu sync.Mutex
	// waiting are the calls without a response, by their serial.
	waiting map[uint32]procedure
	// uploads are the serials of streams that the client writes to. On these the daemon sends only a message when they
	// end.
	uploads map[uint32]bool
	// events are the procedures of the events that the client has registered for.
	events map[int32]bool
}

type procedure struct {
	program uint32
	proc    int32
}

// NewSession returns a Session for one connection.
func NewSession() *Session {
	return &Session{waiting: map[uint32]procedure{}, uploads: map[uint32]bool{}, events: map[int32]bool{}}
}

// Calls forwards the messages of the client and records the responses that they may have. It returns io.EOF if the
// connection ends between two messages, or another error.
func (s *Session) Calls(to io.Writer, from io.Reader) error {
	buffer := make([]byte, BufferBytes)
	for {
		h, size, err := readHeader(from, buffer)
		if err != nil {
			return err
		}
		known := headerSize
		if h.kind == typeCall && h.program == programRemote && h.proc == procEventRegisterAny && size >= headerSize+4 {
			// Before the call is forwarded: the first event may arrive before the response.
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

// Responses forwards the daemon's responses to calls of the client, and its events, if they are admitted. After any
// other message it returns ErrRefused, without forwarding a byte of that message.
func (s *Session) Responses(to io.Writer, from io.Reader, admit Admit) error {
	buffer := make([]byte, BufferBytes)
	for {
		h, size, err := readHeader(from, buffer)
		if err != nil {
			return err
		}
		kind, err := s.classify(h, size)
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
	s.waiting[h.serial] = procedure{h.program, h.proc}
	if h.program == programRemote && h.proc == procStorageVolUpload {
		s.uploads[h.serial] = true
	}
}

// classify returns the kind of a message, or why it must not reach the client.
func (s *Session) classify(h header, size int) (Kind, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case h.program == programKeepAlive && h.kind == typeMessage && size == headerSize:
		return KindKeepAlive, nil
	case h.kind == typeReply && s.waiting[h.serial] == procedure{h.program, h.proc} && h.program != 0:
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
		return 0, fmt.Errorf("%w: no call or registration for program %#x, procedure %d, type %d, serial %d, %d bytes",
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

// copyMessage forwards a message, whose first bytes are in the buffer, piece by piece.
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
