// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package libvirtwire

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var testDomain = Domain{Name: "default_test", UUID: [16]byte{1, 2, 3}, ID: 7}

// daemon is a libvirtd whose responses a test determines.
type daemon struct {
	t    *testing.T
	conn net.Conn
}

func newPair(t *testing.T) (*Client, *daemon) {
	t.Helper()
	here, there := net.Pipe()
	c := newClient(here, Large{})
	t.Cleanup(c.Close)
	t.Cleanup(func() { _ = there.Close() })
	return c, &daemon{t: t, conn: there}
}

// receive reads one call.
func (d *daemon) receive() (proc int32, serial uint32, body []byte) {
	var size [4]byte
	if _, err := io.ReadFull(d.conn, size[:]); err != nil {
		d.t.Error(err)
		return 0, 0, nil
	}
	buf := make([]byte, binary.BigEndian.Uint32(size[:])-4)
	if _, err := io.ReadFull(d.conn, buf); err != nil {
		d.t.Error(err)
		return 0, 0, nil
	}
	dec := decoder{buf: buf}
	dec.u32()
	dec.u32()
	proc = dec.i32()
	dec.u32()
	serial = dec.u32()
	dec.u32()
	return proc, serial, dec.buf
}

func (d *daemon) send(proc int32, kind, serial, status uint32, body []byte) {
	var e encoder
	e.u32(uint32(headerSize + len(body)))
	e.u32(programRemote)
	e.u32(protocolVersion)
	e.i32(proc)
	e.u32(kind)
	e.u32(serial)
	e.u32(status)
	if _, err := d.conn.Write(append(e.buf, body...)); err != nil {
		d.t.Error(err)
	}
}

func TestCalls(t *testing.T) {
	c, d := newPair(t)
	go func() {
		proc, serial, body := d.receive()
		name := (&decoder{buf: body}).str()
		if proc != procDomainLookupByName || name != testDomain.Name {
			t.Errorf("procedure %d for %q", proc, name)
		}
		var e encoder
		e.domain(testDomain)
		d.send(proc, typeReply, serial, statusOK, e.buf)

		proc, serial, body = d.receive()
		dec := decoder{buf: body}
		if got := dec.domain(); proc != procDomainGetState || got != testDomain {
			t.Errorf("procedure %d for %+v", proc, got)
		}
		var state encoder
		state.i32(int32(StateShutoff))
		state.i32(int32(ShutoffCrashed))
		d.send(proc, typeReply, serial, statusOK, state.buf)
	}()
	ctx := context.Background()
	domain, err := c.Lookup(ctx, testDomain.Name)
	if err != nil {
		t.Fatal(err)
	}
	state, reason, err := c.State(ctx, domain)
	if err != nil || state != StateShutoff || ShutoffReason(reason) != ShutoffCrashed {
		t.Errorf("got %d, %d, %v", state, reason, err)
	}
}

func TestJobActive(t *testing.T) {
	for kind, want := range map[int32]bool{0: false, jobBounded: true, jobUnbounded: true, 3: false} {
		c, d := newPair(t)
		go func() {
			proc, serial, body := d.receive()
			dec := decoder{buf: body}
			if got := dec.domain(); proc != procDomainGetJobInfo || got != testDomain {
				t.Errorf("procedure %d for %+v", proc, got)
			}
			var e encoder
			e.i32(kind)
			for range 11 { // the job's statistics
				e.u32(0)
				e.u32(0)
			}
			d.send(proc, typeReply, serial, statusOK, e.buf)
		}()
		if got, err := c.JobActive(t.Context(), testDomain); err != nil || got != want {
			t.Errorf("a job of kind %d: %t, %v", kind, got, err)
		}
	}
}

func TestMetadata(t *testing.T) {
	c, d := newPair(t)
	go func() {
		proc, serial, body := d.receive()
		dec := decoder{buf: body}
		got, kind, namespace, flags := dec.domain(), dec.i32(), dec.optionalStr(), dec.u32()
		if proc != procDomainGetMetadata || got != testDomain || kind != metadataElement || namespace != "urn:test" ||
			flags != affectLive {
			t.Errorf("procedure %d for %+v: %d %q %d", proc, got, kind, namespace, flags)
		}
		var e encoder
		e.str("<note/>")
		d.send(proc, typeReply, serial, statusOK, e.buf)
	}()
	if got, err := c.Metadata(t.Context(), testDomain, "urn:test"); err != nil || got != "<note/>" {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestErrorResponse(t *testing.T) {
	c, d := newPair(t)
	go func() {
		proc, serial, _ := d.receive()
		var e encoder
		e.i32(CodeNoDomain)
		e.i32(10)
		e.u32(1)
		e.str("Domain not found")
		d.send(proc, typeReply, serial, 1, e.buf)
	}()
	_, err := c.Lookup(context.Background(), "x")
	var response *Error
	if !errors.As(err, &response) || response.Code != CodeNoDomain || response.Message != "Domain not found" {
		t.Errorf("got %v", err)
	}
}

func TestEvents(t *testing.T) {
	c, d := newPair(t)
	var e encoder
	e.i32(0)
	e.domain(testDomain)
	e.i32(int32(EventStopped))
	e.i32(StoppedCrashed)
	d.send(99, typeMessage, 0, statusOK, nil) // an unknown program is ignored
	d.send(procEventLifecycleMessage, typeMessage, 0, statusOK, e.buf)
	want := Event{Domain: testDomain, Type: EventStopped, Detail: StoppedCrashed}
	if diff := cmp.Diff(want, <-c.Events()); diff != "" {
		t.Error(diff)
	}
}

func TestSilentDaemon(t *testing.T) {
	c, d := newPair(t)
	go d.receive()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	if _, err := c.Lookup(ctx, "x"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

func TestConnectionEnds(t *testing.T) {
	c, d := newPair(t)
	go func() {
		d.receive()
		_ = d.conn.Close()
	}()
	if _, err := c.Lookup(context.Background(), "x"); !errors.Is(err, ErrClosed) {
		t.Errorf("got %v", err)
	}
	if _, open := <-c.Events(); open {
		t.Error("the events channel is open")
	}
	if err := c.SubscribeLifecycle(context.Background()); !errors.Is(err, ErrClosed) {
		t.Errorf("a later call got %v", err)
	}
}

func TestInvalidMessages(t *testing.T) {
	for name, bytes := range map[string][]byte{
		"too short":      {0, 0, 0, 5, 1},
		"too long":       {0xff, 0xff, 0xff, 0xff},
		"broken event":   append([]byte{0, 0, 0, 32, 0x20, 0, 0x80, 0x86, 0, 0, 0, 1, 0, 0, 1, 62, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0}, 0, 0, 0, 0),
		"endless string": append([]byte{0, 0, 0, 36, 0x20, 0, 0x80, 0x86, 0, 0, 0, 1, 0, 0, 1, 62, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0}, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff),
	} {
		t.Run(name, func(t *testing.T) {
			c, d := newPair(t)
			go func() { _, _ = d.conn.Write(bytes) }()
			if _, open := <-c.Events(); open {
				t.Error("got an event")
			}
		})
	}
}

const (
	testInterval = 10 * time.Millisecond
	testTimeout  = 200 * time.Millisecond
)

// programOf reads one message and returns its program.
func (d *daemon) programOf() (uint32, error) {
	var head [headerSize]byte
	if _, err := io.ReadFull(d.conn, head[:]); err != nil {
		return 0, err
	}
	_, err := io.CopyN(io.Discard, d.conn, int64(binary.BigEndian.Uint32(head[:]))-headerSize)
	return binary.BigEndian.Uint32(head[4:]), err
}

func TestKeepAliveEndsCallOfSilentDaemon(t *testing.T) {
	for name, reads := range map[string]bool{"one that reads": true, "one that hangs": false} {
		t.Run(name, func(t *testing.T) {
			c, d := newPair(t)
			called := make(chan struct{})
			go func() {
				d.receive()
				close(called)
				for reads {
					if _, err := d.programOf(); err != nil {
						return
					}
				}
			}()
			done := make(chan error, 1)
			go func() {
				_, err := c.MigratePerform(t.Context(), testDomain, nil, nil, 0)
				done <- err
			}()
			<-called
			c.KeepAlive(testInterval, testTimeout)
			select {
			case err := <-done:
				if !errors.Is(err, ErrClosed) {
					t.Errorf("got %v", err)
				}
			case <-time.After(time.Minute):
				t.Fatal("the call does not end")
			}
		})
	}
}

func TestKeepAliveKeepsLongCall(t *testing.T) {
	c, d := newPair(t)
	go func() {
		_, serial, _ := d.receive()
		// Longer than the timeout, with nothing but responses to pings.
		for end := time.Now().Add(4 * testTimeout); time.Now().Before(end); {
			program, err := d.programOf()
			if err != nil || program != programKeepAlive {
				t.Errorf("program %#x, %v", program, err)
				return
			}
			if _, err := d.conn.Write(message(header{programKeepAlive, 2, typeMessage, 0, statusOK}, nil)); err != nil {
				t.Error(err)
				return
			}
		}
		var e encoder
		e.opaque([]byte("cookie"))
		go func() {
			for {
				if _, err := d.programOf(); err != nil {
					return
				}
			}
		}()
		d.send(procMigratePerform, typeReply, serial, statusOK, e.buf)
	}()
	c.KeepAlive(testInterval, testTimeout)
	cookie, err := c.MigratePerform(t.Context(), testDomain, nil, nil, 0)
	if err != nil || string(cookie) != "cookie" {
		t.Errorf("got %q, %v", cookie, err)
	}
}
