// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package libvirtwire implements the calls of libvirt's remote protocol for which the C library is not suitable.
//
// PID 1 of a launcher Pod watches one domain, shuts it down and destroys it. The C library with its sixty dependencies
// takes 17 MB of resident memory before the first call (measured with libvirt 11.3 on Debian trixie), more than the
// whole launcher may use.
//
// The agent opens consoles, screens and screenshots, each over its own connection. The C library reads whatever a
// stream sends and keeps it in memory until the application reads it; this package reads nothing before that.
package libvirtwire

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// ErrClosed means that the connection to the daemon has ended.
var ErrClosed = errors.New("the connection to libvirtd is closed")

// eventBacklog is the capacity of Events. A domain has a handful of lifecycle events in total.
const eventBacklog = 64

// Client is a connection to libvirtd. Its methods may be used from several goroutines.
type Client struct {
	conn   net.Conn
	large  Large
	events chan Event
	done   chan struct{}
	// closing is closed by Close.
	closing chan struct{}
	close   sync.Once

	// lastMessage is when the daemon last sent data, in nanoseconds since 1970.
	lastMessage atomic.Int64
	// timedOut is the timeout of KeepAlive if it closed the connection, or nil.
	timedOut atomic.Pointer[time.Duration]

	// write is held while a message is sent, which blocks if the daemon does not read. mu guards the fields below and is
	// never held while a goroutine blocks, so responses are read even while a message cannot be sent.
	write sync.Mutex

	mu      sync.Mutex
	serial  uint32
	waiting map[uint32]chan reply
	streams map[uint32]*Stream
	err     error
}

type reply struct {
	status uint32
	body   []byte
}

// Dial connects to the daemon's socket and opens its QEMU driver. The daemon may accept connections before it responds;
// ctx bounds the wait.
func Dial(ctx context.Context, socket string) (*Client, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, err
	}
	return Open(ctx, conn)
}

// Large limits long messages of the daemon. It does not apply to stream data, which is read in pieces.
type Large struct {
	// Above is the size in bytes above which a message is long. 0 means that none is.
	Above int
	// Admit is called before the memory for a long message is allocated. It may block; an error ends the connection.
	Admit func() error
	// Timeout is how long the daemon may take to send the message after Admit has returned.
	Timeout time.Duration
}

// Open opens the QEMU driver of the daemon at the other end of a connection. The client owns the connection, which is
// closed if this fails.
func Open(ctx context.Context, conn net.Conn) (*Client, error) {
	return OpenLimited(ctx, conn, Large{})
}

// OpenLimited is Open for a daemon whose long messages are limited.
func OpenLimited(ctx context.Context, conn net.Conn, large Large) (*Client, error) {
	c := newClient(conn, large)
	var args encoder
	args.u32(1)
	args.str("qemu:///session")
	args.u32(0)
	if _, err := c.call(ctx, procConnectOpen, args.buf); err != nil {
		c.Close()
		return nil, fmt.Errorf("open qemu:///session: %w", err)
	}
	return c, nil
}

func newClient(conn net.Conn, large Large) *Client {
	c := &Client{
		conn: conn, large: large, events: make(chan Event, eventBacklog), done: make(chan struct{}),
		closing: make(chan struct{}), waiting: map[uint32]chan reply{}, streams: map[uint32]*Stream{},
	}
	go c.read()
	return c
}

// Close ends the connection. Events is closed soon after.
func (c *Client) Close() {
	c.close.Do(func() {
		close(c.closing)
		_ = c.conn.Close()
	})
}

// Done returns a channel that is closed when the connection has ended.
func (c *Client) Done() <-chan struct{} { return c.done }

// Events returns the channel of lifecycle events, which arrive after SubscribeLifecycle. It is closed when the
// connection ends.
func (c *Client) Events() <-chan Event { return c.events }

func (c *Client) call(ctx context.Context, proc int32, args []byte) ([]byte, error) {
	return c.callProgram(ctx, programRemote, proc, args)
}

func (c *Client) callProgram(ctx context.Context, program uint32, proc int32, args []byte) ([]byte, error) {
	return c.exchange(ctx, request{program: program, proc: proc, args: args})
}

// request is a call to the daemon.
type request struct {
	program uint32
	proc    int32
	args    []byte
	// stream receives the data of the call's stream, if it has one.
	stream *Stream
	// file is a descriptor that is sent with the call, or nil.
	file *os.File
}

// exchange makes a call and waits for its response.
func (c *Client) exchange(ctx context.Context, r request) ([]byte, error) {
	responses := make(chan reply, 1)
	serial, err := c.send(ctx, r, responses)
	if err != nil {
		return nil, err
	}
	defer c.forget(serial)
	select {
	case r := <-responses:
		if r.status == statusOK {
			return r.body, nil
		}
		return nil, decodeError(r.body)
	case <-c.done:
		return nil, c.failure()
	case <-ctx.Done():
		return nil, fmt.Errorf("libvirtd did not respond: %w", ctx.Err())
	}
}

func (c *Client) send(ctx context.Context, r request, responses chan reply) (uint32, error) {
	c.write.Lock()
	defer c.write.Unlock()
	serial, err := c.register(r, responses)
	if err != nil {
		return 0, err
	}
	kind, args := uint32(typeCall), r.args
	if r.file != nil {
		kind, args = typeCallWithFDs, append(binary.BigEndian.AppendUint32(nil, 1), args...)
	}
	deadline, _ := ctx.Deadline() // the zero time means none
	err = c.conn.SetWriteDeadline(deadline)
	if err == nil {
		_, err = c.conn.Write(message(header{r.program, r.proc, kind, serial, statusOK}, args))
	}
	if err == nil && r.file != nil {
		err = c.sendFile(r.file)
	}
	if err != nil {
		c.forget(serial)
		// Part of the message may be sent, so the connection cannot be used any more.
		c.Close()
		return 0, fmt.Errorf("call libvirtd: %w", err)
	}
	return serial, nil
}

// register assigns a serial to a call and registers the channel for its response.
func (c *Client) register(r request, responses chan reply) (uint32, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return 0, c.err
	}
	c.serial++
	c.waiting[c.serial] = responses
	if r.stream != nil {
		r.stream.serial = c.serial
		c.streams[c.serial] = r.stream
	}
	return c.serial, nil
}

// sendFile sends a descriptor with one byte without meaning (virSocketSendFD in libvirt).
func (c *Client) sendFile(file *os.File) error {
	socket, ok := c.conn.(*net.UnixConn)
	if !ok {
		return errors.New("descriptors can be sent over unix sockets only")
	}
	_, _, err := socket.WriteMsgUnix([]byte{0}, unix.UnixRights(int(file.Fd())), nil)
	return err
}

// header is virNetMessageHeader without the protocol's version.
type header struct {
	program uint32
	proc    int32
	kind    uint32
	serial  uint32
	status  uint32
}

func message(h header, body []byte) []byte {
	e := encoder{buf: make([]byte, 0, headerSize+len(body))}
	e.u32(uint32(headerSize + len(body)))
	e.u32(h.program)
	e.u32(protocolVersion)
	e.i32(h.proc)
	e.u32(h.kind)
	e.u32(h.serial)
	e.u32(h.status)
	return append(e.buf, body...)
}

func (c *Client) forget(serial uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.waiting, serial)
}

func (c *Client) failure() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// read reads messages until the connection ends.
func (c *Client) read() {
	var err error
	for err == nil {
		err = c.readMessage()
	}
	c.Close()
	c.mu.Lock()
	c.err = ErrClosed
	if !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
		c.err = fmt.Errorf("%w: %w", ErrClosed, err)
	}
	c.err = c.ended(c.err)
	c.mu.Unlock()
	close(c.done)
	close(c.events)
}

func (c *Client) readMessage() error {
	var head [headerSize]byte
	// An invalid length ends the connection.
	if _, err := io.ReadFull(c.conn, head[:4]); err != nil {
		return err
	}
	length := binary.BigEndian.Uint32(head[:])
	if length < headerSize || length > maxMessage {
		return fmt.Errorf("a message of %d bytes is not between %d and %d", length, headerSize, maxMessage)
	}
	if _, err := io.ReadFull(c.conn, head[4:]); err != nil {
		return err
	}
	d := decoder{buf: head[4:]}
	program, _ := d.u32(), d.u32()
	h, size := header{program: program, proc: d.i32(), kind: d.u32(), serial: d.u32(), status: d.u32()}, int(length)
	known := h.program == programRemote || h.program == programQEMU
	if known && h.kind == typeStream && h.status == statusContinue && size > headerSize {
		return c.readPieces(h.serial, size-headerSize)
	}
	body, err := c.readBody(size - headerSize)
	if err != nil || !known {
		return err
	}
	switch h.kind {
	case typeReply:
		c.deliver(h.serial, reply{status: h.status, body: body})
	case typeStream:
		return c.deliverStream(h.serial, h.status, body)
	case typeMessage:
		if h.program == programRemote && h.proc == procEventLifecycleMessage {
			return c.deliverEvent(decoder{buf: body})
		}
	}
	return nil
}

// readBody reads the rest of a message.
func (c *Client) readBody(size int) ([]byte, error) {
	if above := c.large.Above; above > 0 && size > above {
		if err := c.large.Admit(); err != nil {
			return nil, err
		}
		if err := c.conn.SetReadDeadline(time.Now().Add(c.large.Timeout)); err != nil {
			return nil, err
		}
		defer func() { _ = c.conn.SetReadDeadline(time.Time{}) }()
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(c.conn, body); err != nil {
		return nil, err
	}
	c.lastMessage.Store(time.Now().UnixNano())
	return body, nil
}

// readPieces reads the stream data of a message in pieces of at most maxPiece.
func (c *Client) readPieces(serial uint32, size int) error {
	for size > 0 {
		piece := make([]byte, min(size, maxPiece))
		if _, err := io.ReadFull(c.conn, piece); err != nil {
			return err
		}
		c.lastMessage.Store(time.Now().UnixNano())
		size -= len(piece)
		if err := c.deliverStream(serial, statusContinue, piece); err != nil {
			return err
		}
	}
	return nil
}

func (c *Client) deliver(serial uint32, r reply) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if responses, ok := c.waiting[serial]; ok {
		responses <- r
		delete(c.waiting, serial)
	}
}

func (c *Client) deliverEvent(d decoder) error {
	_ = d.i32() // the callback's id: there is one callback
	event := Event{Domain: d.domain()}
	event.Type, event.Detail = EventType(d.i32()), d.i32()
	if d.err != nil {
		return fmt.Errorf("read a lifecycle event: %w", d.err)
	}
	select {
	case c.events <- event:
		return nil
	case <-time.After(time.Second):
		// The client connects again and reads the state, so ending the connection loses nothing.
		return errors.New("the events are not received")
	}
}

func decodeError(body []byte) error {
	d := decoder{buf: body}
	code := d.i32()
	_ = d.i32() // the part of libvirt with the error
	message := d.optionalStr()
	if d.err != nil {
		return fmt.Errorf("read libvirtd's error: %w", d.err)
	}
	return &Error{Code: code, Message: message}
}

// programKeepAlive is the protocol of pings (src/rpc/virkeepaliveprotocol.x in libvirt). libvirtd responds in its event
// loop, even while its workers block.
const (
	programKeepAlive = 0x6b656570
	keepAlivePing    = 1
)

// KeepAlive sends a ping in each interval, and closes the connection if the daemon has sent nothing for the timeout.
// Calls that may take hours then fail with ErrClosed. It is called once, and stops with the connection.
func (c *Client) KeepAlive(interval, timeout time.Duration) {
	c.lastMessage.Store(time.Now().UnixNano())
	go func() {
		tick := time.NewTicker(interval)
		defer tick.Stop()
		for {
			select {
			case <-c.done:
				return
			case <-tick.C:
			}
			if time.Since(time.Unix(0, c.lastMessage.Load())) >= timeout || c.ping(timeout) != nil {
				c.timedOut.CompareAndSwap(nil, &timeout)
				c.Close()
				return
			}
		}
	}()
}

// ping sends a ping. It fails if the daemon does not read it.
func (c *Client) ping(timeout time.Duration) error {
	c.write.Lock()
	defer c.write.Unlock()
	if err := c.conn.SetWriteDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	_, err := c.conn.Write(message(header{programKeepAlive, keepAlivePing, typeMessage, 0, statusOK}, nil))
	return err
}

// ended returns the error of calls after the end of the connection.
func (c *Client) ended(err error) error {
	if timeout := c.timedOut.Load(); timeout != nil {
		return fmt.Errorf("%w: it has not responded for %s", ErrClosed, *timeout)
	}
	return err
}

// IsKeepAlive reports whether a program is that of pings.
func IsKeepAlive(program uint32) bool { return program == programKeepAlive }
