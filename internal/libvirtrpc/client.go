// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package libvirtrpc speaks the few calls of libvirt's remote protocol that are better made without the C library.
//
// PID 1 of a VM's Pod follows one domain, shuts it down, destroys it. Loading the C library and the sixty
// libraries that it needs takes 17 MB of resident memory before the first call (measured with libvirt 11.3
// on Debian trixie), more than the whole launcher may have.
//
// The agent opens consoles, screens and screenshots, each over a connection of its own. The C library takes in whatever
// a stream sends, as fast as it comes, and keeps it until somebody asks; here nothing is read before it is wanted.
package libvirtrpc

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

// eventBacklog is how many events may wait. A domain has a handful in its life.
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

	// heard is when the daemon said something last, in nanoseconds since 1970, and silent for how long it had not when it was
	// given up.
	heard  atomic.Int64
	silent atomic.Pointer[time.Duration]

	// write is held while a message is sent, mu never while anything is waited for: a daemon that does not read must not
	// keep its answers from being read.
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

// Dial connects to the daemon's socket and opens its QEMU driver. The daemon may listen before it answers:
// ctx bounds how long to wait.
func Dial(ctx context.Context, socket string) (*Client, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, err
	}
	return Open(ctx, conn)
}

// Large is what a Client does about long messages. A stream's are none: they are read in pieces.
type Large struct {
	// Above is from how many bytes on, without them, a message is long. 0 means that none is.
	Above int
	// Admit is called before there is memory for one. It may wait; an error ends the connection.
	Admit func() error
	// Patience is how long the daemon may take then to send it.
	Patience time.Duration
}

// Open talks to the daemon that a connection leads to, and opens its QEMU driver. The connection is the client's from then
// on, and closed when this fails.
func Open(ctx context.Context, conn net.Conn) (*Client, error) {
	return OpenLimited(ctx, conn, Large{})
}

// OpenLimited does what Open does, for a daemon whose long messages are not simply believed.
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
		conn: conn, large: large, events: make(chan Event, eventBacklog), done: make(chan struct{}), closing: make(chan struct{}),
		waiting: map[uint32]chan reply{}, streams: map[uint32]*Stream{},
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

// Done is closed when the connection has ended.
func (c *Client) Done() <-chan struct{} { return c.done }

// Events delivers lifecycle events once SubscribeLifecycle was called. It is closed when the connection ends.
func (c *Client) Events() <-chan Event { return c.events }

// SubscribeLifecycle asks for the lifecycle events of all domains.
func (c *Client) SubscribeLifecycle(ctx context.Context) error {
	var args encoder
	args.i32(eventIDLifecycle)
	args.u32(0) // no domain: all of them
	_, err := c.call(ctx, procEventRegisterAny, args.buf)
	return err
}

// Lookup finds a domain by name.
func (c *Client) Lookup(ctx context.Context, name string) (Domain, error) {
	var args encoder
	args.str(name)
	body, err := c.call(ctx, procDomainLookupByName, args.buf)
	if err != nil {
		return Domain{}, err
	}
	d := decoder{buf: body}
	return d.domain(), d.err
}

// State is the domain's state and the reason for it.
func (c *Client) State(ctx context.Context, domain Domain) (State, int32, error) {
	var args encoder
	args.domain(domain)
	args.u32(0)
	body, err := c.call(ctx, procDomainGetState, args.buf)
	if err != nil {
		return StateNone, 0, err
	}
	d := decoder{buf: body}
	state, reason := d.i32(), d.i32()
	return State(state), reason, d.err
}

// JobActive reports whether libvirt works on the domain as a whole: a migration from here, a save or a dump. libvirt answers
// with an error (CodeOperationInvalid) for a migration that comes in.
func (c *Client) JobActive(ctx context.Context, domain Domain) (bool, error) {
	var args encoder
	args.domain(domain)
	body, err := c.call(ctx, procDomainGetJobInfo, args.buf)
	if err != nil {
		return false, err
	}
	d := decoder{buf: body}
	kind := d.i32()
	return kind == jobBounded || kind == jobUnbounded, d.err
}

// Shutdown presses the guest's ACPI power button, as virt-handler does: what ends a guest must not depend on who asks.
func (c *Client) Shutdown(ctx context.Context, domain Domain) error {
	return c.domainCall(ctx, procDomainShutdownFlags, domain, shutdownACPI)
}

// Destroy ends the domain at once.
func (c *Client) Destroy(ctx context.Context, domain Domain) error {
	return c.domainCall(ctx, procDomainDestroyFlags, domain, 0)
}

// Kinds of metadata (virDomainMetadataType), and that of the running domain (virDomainModificationImpact).
const (
	metadataElement = 2
	affectLive      = 1
)

// SetMetadata sets the element of a namespace in the running domain's metadata, with a prefix for the namespace. An empty element
// takes it away, and fails with CodeNoDomainMetadata if there is none.
func (c *Client) SetMetadata(ctx context.Context, domain Domain, element, prefix, namespace string) error {
	var args encoder
	args.domain(domain)
	args.i32(metadataElement)
	args.optionalStr(element)
	args.optionalStr(prefix)
	args.optionalStr(namespace)
	args.u32(affectLive)
	_, err := c.call(ctx, procDomainSetMetadata, args.buf)
	return err
}

// Metadata is the element of a namespace in the running domain's metadata. It fails with CodeNoDomainMetadata if there is none.
func (c *Client) Metadata(ctx context.Context, domain Domain, namespace string) (string, error) {
	var args encoder
	args.domain(domain)
	args.i32(metadataElement)
	args.optionalStr(namespace)
	args.u32(affectLive)
	return c.text(ctx, procDomainGetMetadata, args.buf)
}

// Capabilities is what libvirt knows of the host, as XML.
func (c *Client) Capabilities(ctx context.Context) (string, error) {
	return c.text(ctx, procGetCapabilities, nil)
}

// DomainCapabilities is what a domain of a machine type can have here, as XML. libvirt chooses the emulator and whether
// to use KVM.
func (c *Client) DomainCapabilities(ctx context.Context, machine string) (string, error) {
	var args encoder
	args.optionalStr("") // the emulator
	args.optionalStr("") // the architecture: the host's
	args.optionalStr(machine)
	args.optionalStr("") // KVM where it can be used
	args.u32(0)
	return c.text(ctx, procGetDomainCapabilities, args.buf)
}

// AgentCommand gives the guest's agent a command, as JSON, and returns its answer. libvirtd waits for it as long as is
// said, in whole seconds.
func (c *Client) AgentCommand(ctx context.Context, domain Domain, command string, wait time.Duration) (string, error) {
	body, err := c.agentCommand(ctx, domain, command, wait)
	if err != nil {
		return "", err
	}
	d := decoder{buf: body}
	return d.optionalStr(), d.err
}

// AgentAnswer does what AgentCommand does, for answers as long as libvirt passes on: 4 MiB (REMOTE_STRING_MAX).
func (c *Client) AgentAnswer(ctx context.Context, domain Domain, command string, wait time.Duration) ([]byte, error) {
	body, err := c.agentCommand(ctx, domain, command, wait)
	if err != nil {
		return nil, err
	}
	d := decoder{buf: body}
	if d.u32() == 0 {
		return nil, d.err
	}
	return d.take(int(d.u32())), d.err
}

func (c *Client) agentCommand(ctx context.Context, domain Domain, command string, wait time.Duration) ([]byte, error) {
	var args encoder
	args.domain(domain)
	args.str(command)
	args.i32(int32(max(wait.Round(time.Second), time.Second) / time.Second))
	args.u32(0)
	return c.callProgram(ctx, programQEMU, procQEMUAgentCommand, args.buf)
}

// text makes a call that answers with one string.
func (c *Client) text(ctx context.Context, proc int32, args []byte) (string, error) {
	body, err := c.call(ctx, proc, args)
	if err != nil {
		return "", err
	}
	d := decoder{buf: body}
	return d.str(), d.err
}

func (c *Client) domainCall(ctx context.Context, proc int32, domain Domain, flags uint32) error {
	var args encoder
	args.domain(domain)
	args.u32(flags)
	_, err := c.call(ctx, proc, args.buf)
	return err
}

func (c *Client) call(ctx context.Context, proc int32, args []byte) ([]byte, error) {
	return c.callProgram(ctx, programRemote, proc, args)
}

func (c *Client) callProgram(ctx context.Context, program uint32, proc int32, args []byte) ([]byte, error) {
	return c.exchange(ctx, request{program: program, proc: proc, args: args})
}

// request is a call.
type request struct {
	program uint32
	proc    int32
	args    []byte
	// stream takes what comes on the call's stream, if it has one.
	stream *Stream
	// file goes with the call, if there is one.
	file *os.File
}

// exchange makes a call and waits for its answer.
func (c *Client) exchange(ctx context.Context, r request) ([]byte, error) {
	answer := make(chan reply, 1)
	serial, err := c.send(ctx, r, answer)
	if err != nil {
		return nil, err
	}
	defer c.forget(serial)
	select {
	case r := <-answer:
		if r.status == statusOK {
			return r.body, nil
		}
		return nil, decodeError(r.body)
	case <-c.done:
		return nil, c.failure()
	case <-ctx.Done():
		return nil, fmt.Errorf("libvirtd did not answer: %w", ctx.Err())
	}
}

func (c *Client) send(ctx context.Context, r request, answer chan reply) (uint32, error) {
	c.write.Lock()
	defer c.write.Unlock()
	serial, err := c.register(r, answer)
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
		// Half a message may be out: what follows it would be nonsense to the daemon.
		c.Close()
		return 0, fmt.Errorf("call libvirtd: %w", err)
	}
	return serial, nil
}

// register makes room for a call's answer.
func (c *Client) register(r request, answer chan reply) (uint32, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return 0, c.err
	}
	c.serial++
	c.waiting[c.serial] = answer
	if r.stream != nil {
		r.stream.serial = c.serial
		c.streams[c.serial] = r.stream
	}
	return c.serial, nil
}

// sendFile sends a descriptor, which goes with one byte that means nothing (virSocketSendFD in libvirt).
func (c *Client) sendFile(file *os.File) error {
	socket, ok := c.conn.(*net.UnixConn)
	if !ok {
		return errors.New("descriptors go over unix sockets only")
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

// read takes messages until the connection ends.
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
	// The length alone may be reason enough to end it.
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
		if err := c.conn.SetReadDeadline(time.Now().Add(c.large.Patience)); err != nil {
			return nil, err
		}
		defer func() { _ = c.conn.SetReadDeadline(time.Time{}) }()
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(c.conn, body); err != nil {
		return nil, err
	}
	c.heard.Store(time.Now().UnixNano())
	return body, nil
}

// readPieces reads what a message has of a stream, no more of it at a time than is small.
func (c *Client) readPieces(serial uint32, size int) error {
	for size > 0 {
		piece := make([]byte, min(size, maxPiece))
		if _, err := io.ReadFull(c.conn, piece); err != nil {
			return err
		}
		c.heard.Store(time.Now().UnixNano())
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
	if answer, ok := c.waiting[serial]; ok {
		answer <- r
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
		// Who does not listen connects again and reads the state: losing the connection loses nothing.
		return errors.New("nobody takes the events")
	}
}

func decodeError(body []byte) error {
	d := decoder{buf: body}
	code := d.i32()
	_ = d.i32() // the part of libvirt that it came from
	message := d.optionalStr()
	if d.err != nil {
		return fmt.Errorf("read libvirtd's error: %w", d.err)
	}
	return &Error{Code: code, Message: message}
}
