// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package scriptedlibvirtd

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
)

// Numbers of libvirt's protocol. Source: src/rpc/virnetprotocol.x, virkeepaliveprotocol.x,
// src/remote/remote_protocol.x.
const (
	headerSize = 28
	maxMessage = 4 << 20

	programRemote    = 0x20008086
	programKeepAlive = 0x6b656570
	keepAlivePong    = 2

	typeReply   = 1
	typeMessage = 2

	statusOK    = 0
	statusError = 1
)

// Call is a call of a client.
type Call struct {
	// Program and Proc identify the procedure.
	Program uint32
	Proc    int32
	// Args is the encoded rest.
	Args []byte

	kind, serial uint32
}

// Peer is a connection with a client.
type Peer struct {
	conn  net.Conn
	write sync.Mutex
}

// Reply responds to a call.
func (p *Peer) Reply(c Call, body []byte) error {
	return p.send(c.Program, c.Proc, typeReply, c.serial, statusOK, body)
}

// Refuse responds to a call with an error of libvirt's.
func (p *Peer) Refuse(c Call, code int32, message string) error {
	var e Encoder
	e.I32(code).I32(0).OptionalStr(message).I32(2) // where it comes from, and that it is an error
	e.I32(0).I32(0).I32(0).I32(0)                  // no domain and no strings
	e.I32(0).I32(0).I32(0)                         // two numbers, and no network
	return p.send(c.Program, c.Proc, typeReply, c.serial, statusError, e.Bytes())
}

// Message sends a message that is not a response, such as an event.
func (p *Peer) Message(proc int32, body []byte) error {
	return p.send(programRemote, proc, typeMessage, 0, statusOK, body)
}

// Close closes the connection.
func (p *Peer) Close() { _ = p.conn.Close() }

func (p *Peer) send(program uint32, proc int32, kind, serial, status uint32, body []byte) error {
	m := make([]byte, 0, headerSize+len(body))
	for _, word := range []uint32{uint32(headerSize + len(body)), program, 1, uint32(proc), kind, serial, status} {
		m = binary.BigEndian.AppendUint32(m, word)
	}
	p.write.Lock()
	defer p.write.Unlock()
	_, err := p.conn.Write(append(m, body...))
	return err
}

// read waits for the next call.
func (p *Peer) read() (Call, error) {
	head := make([]byte, headerSize)
	if _, err := io.ReadFull(p.conn, head); err != nil {
		return Call{}, err
	}
	word := func(i int) uint32 { return binary.BigEndian.Uint32(head[4*i:]) }
	if word(0) < headerSize || word(0) > maxMessage {
		return Call{}, fmt.Errorf("a message of %d bytes", word(0))
	}
	c := Call{Program: word(1), Proc: int32(word(3)), kind: word(4), serial: word(5),
		Args: make([]byte, word(0)-headerSize)}
	_, err := io.ReadFull(p.conn, c.Args)
	return c, err
}

// Encoder writes XDR (RFC 4506).
type Encoder struct{ buf []byte }

// Bytes is what was written.
func (e *Encoder) Bytes() []byte { return e.buf }

// I32 writes a number.
func (e *Encoder) I32(v int32) *Encoder {
	e.buf = binary.BigEndian.AppendUint32(e.buf, uint32(v))
	return e
}

// U64 writes a long number.
func (e *Encoder) U64(v uint64) *Encoder {
	e.buf = binary.BigEndian.AppendUint64(e.buf, v)
	return e
}

// Str writes a string or bytes with their length.
func (e *Encoder) Str(s string) *Encoder {
	e.I32(int32(len(s)))
	e.buf = append(e.buf, s...)
	for len(e.buf)%4 != 0 {
		e.buf = append(e.buf, 0)
	}
	return e
}

// OptionalStr writes a string that may be missing.
func (e *Encoder) OptionalStr(s string) *Encoder { return e.I32(1).Str(s) }

// Domain writes a reference to a domain.
func (e *Encoder) Domain(name string) *Encoder {
	e.Str(name)
	e.buf = append(e.buf, make([]byte, 16)...) // its UUID
	return e.I32(1)
}

// firstString is the string that a call's arguments begin with.
func firstString(args []byte) string {
	if len(args) < 4 {
		return ""
	}
	n := binary.BigEndian.Uint32(args)
	if uint64(n) > uint64(len(args)-4) {
		return ""
	}
	return string(args[4 : 4+n])
}

// firstI32 is the number that a call's arguments begin with.
func firstI32(args []byte) int32 {
	if len(args) < 4 {
		return -1
	}
	return int32(binary.BigEndian.Uint32(args))
}
