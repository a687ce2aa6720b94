// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package libvirtwire

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// openConsole opens a stream with a daemon that allows it.
func openConsole(t *testing.T, c *Client, d *daemon) (*Stream, uint32) {
	t.Helper()
	granted := make(chan uint32, 1)
	go func() {
		proc, serial, body := d.receive()
		dec := decoder{buf: body}
		if domain, device, flags := dec.domain(), dec.optionalStr(), dec.u32(); proc != procDomainOpenConsole ||
			domain != testDomain || device != "" || flags != ConsoleForce {
			t.Errorf("procedure %d for %+v, device %q, flags %d", proc, domain, device, flags)
		}
		d.send(proc, typeReply, serial, statusOK, nil)
		granted <- serial
	}()
	stream, err := c.OpenConsole(context.Background(), testDomain, "", ConsoleForce)
	if err != nil {
		t.Fatal(err)
	}
	return stream, <-granted
}

func TestStreamIsReadToItsEnd(t *testing.T) {
	c, d := newPair(t)
	stream, serial := openConsole(t, c, d)
	go func() {
		d.send(procDomainOpenConsole, typeStream, serial+1, statusContinue, []byte("of another stream"))
		d.send(procDomainOpenConsole, typeStream, serial, statusContinue, []byte("hello, "))
		d.send(procDomainOpenConsole, typeStream, serial, statusContinue, []byte("world"))
		d.send(procDomainOpenConsole, typeStream, serial, statusContinue, nil)
	}()
	if got, err := io.ReadAll(stream); err != nil || string(got) != "hello, world" {
		t.Errorf("%q (%v)", got, err)
	}
	if n, err := stream.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("after the end: %d (%v)", n, err)
	}
}

// libvirtd reads a console in another thread than the one that responds to the call.
func TestStreamStartsBeforeResponse(t *testing.T) {
	c, d := newPair(t)
	go func() {
		proc, serial, _ := d.receive()
		d.send(proc, typeStream, serial, statusContinue, []byte("hello, "))
		d.send(proc, typeReply, serial, statusOK, nil)
		d.send(proc, typeStream, serial, statusContinue, []byte("world"))
		d.send(proc, typeStream, serial, statusOK, nil)
	}()
	stream, err := c.OpenConsole(context.Background(), testDomain, "", ConsoleForce)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(stream); err != nil || string(got) != "hello, world" {
		t.Errorf("%q (%v)", got, err)
	}
}

func TestStreamIsRefused(t *testing.T) {
	c, d := newPair(t)
	go func() {
		proc, serial, _ := d.receive()
		for range maxEarly/maxPiece + 1 {
			d.send(proc, typeStream, serial, statusContinue, make([]byte, maxPiece))
		}
	}()
	if _, err := c.OpenConsole(context.Background(), testDomain, "", ConsoleForce); !errors.Is(err, ErrClosed) ||
		!strings.Contains(err.Error(), "before the response") {
		t.Errorf("got %v", err)
	}
}

// The data of a stream whose call failed is not read, and must not block other calls.
func TestStreamOfFailedCall(t *testing.T) {
	c, d := newPair(t)
	ctx, giveUp := context.WithCancel(context.Background())
	serials := make(chan uint32, 1)
	go func() {
		_, serial, _ := d.receive()
		serials <- serial
		giveUp()
	}()
	if _, err := c.OpenConsole(ctx, testDomain, "", ConsoleForce); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	go func() {
		d.send(procDomainOpenConsole, typeStream, <-serials, statusContinue, []byte("hello"))
		proc, serial, _ := d.receive()
		var e encoder
		e.domain(testDomain)
		d.send(proc, typeReply, serial, statusOK, e.buf)
	}()
	if found, err := c.Lookup(context.Background(), "vm"); err != nil || found != testDomain {
		t.Errorf("%+v (%v)", found, err)
	}
}

func TestStreamEndsWithConnection(t *testing.T) {
	c, d := newPair(t)
	stream, serial := openConsole(t, c, d)
	go func() {
		var e encoder
		e.i32(38)
		e.i32(0)
		e.u32(1)
		e.str("the console went away")
		d.send(procDomainOpenConsole, typeStream, serial, 1, e.buf)
	}()
	var refusal *Error
	if _, err := stream.Read(make([]byte, 1)); !errors.As(err, &refusal) || refusal.Message != "the console went away" {
		t.Errorf("got %v", err)
	}
}

// Data that is not read must stay with the daemon.
func TestStreamIsNotReadAhead(t *testing.T) {
	c, d := newPair(t)
	stream, serial := openConsole(t, c, d)
	sent := make(chan int, 1)
	go func() {
		count := 0
		defer func() { sent <- count }()
		for ; count < 1000; count++ {
			var e encoder
			e.u32(uint32(headerSize + 1024))
			for _, word := range []uint32{programRemote, protocolVersion, procDomainOpenConsole, typeStream, serial,
				statusContinue} {
				e.u32(word)
			}
			if _, err := d.conn.Write(append(e.buf, make([]byte, 1024)...)); err != nil {
				return
			}
		}
	}()
	if _, err := io.ReadFull(stream, make([]byte, 10*1024)); err != nil {
		t.Fatal(err)
	}
	// Close ends a client that waits for the stream's reader.
	_ = stream.Close()
	<-c.Done()
	if count := <-sent; count > 12 {
		t.Errorf("%d pieces were sent, 10 were read", count)
	}
	if _, err := stream.Read(make([]byte, 1)); !errors.Is(err, ErrClosed) {
		t.Errorf("after the end: %v", err)
	}
}

func TestStreamIsWrittenInPieces(t *testing.T) {
	c, d := newPair(t)
	stream, serial := openConsole(t, c, d)
	content := bytes.Repeat([]byte("0123456789"), 10_000)
	go func() {
		if n, err := stream.Write(content); n != len(content) || err != nil {
			t.Errorf("wrote %d (%v)", n, err)
		}
	}()
	var got []byte
	for len(got) < len(content) {
		var size [4]byte
		if _, err := io.ReadFull(d.conn, size[:]); err != nil {
			t.Fatal(err)
		}
		message := make([]byte, binary.BigEndian.Uint32(size[:])-4)
		if _, err := io.ReadFull(d.conn, message); err != nil {
			t.Fatal(err)
		}
		dec := decoder{buf: message}
		for i, want := range []uint32{programRemote, protocolVersion, procDomainOpenConsole, typeStream, serial,
			statusContinue} {
			if word := dec.u32(); word != want {
				t.Fatalf("word %d of the header is %d, not %d", i, word, want)
			}
		}
		if len(dec.buf) > maxPiece {
			t.Fatalf("a piece of %d bytes", len(dec.buf))
		}
		got = append(got, dec.buf...)
	}
	if !bytes.Equal(got, content) {
		t.Error("the received bytes differ from the written ones")
	}
}

// A daemon that does not read must not prevent its messages from being read, and Close must end a blocked write.
func TestBlockedWriteToStream(t *testing.T) {
	c, d := newPair(t)
	stream, serial := openConsole(t, c, d)
	wrote := make(chan error, 1)
	go func() {
		_, err := stream.Write(make([]byte, 1<<20))
		wrote <- err
	}()
	go d.send(procDomainOpenConsole, typeStream, serial, statusContinue, []byte("x"))
	if _, err := stream.Read(make([]byte, 1)); err != nil {
		t.Error(err)
	}
	_ = stream.Close()
	select {
	case err := <-wrote:
		if err == nil {
			t.Error("the write did not block")
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the write did not end with the stream")
	}
}

func TestOpenGraphicsSendsSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: path})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	here, err := net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: path})
	if err != nil {
		t.Fatal(err)
	}
	there, err := listener.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	c := newClient(here, Large{})
	defer c.Close()
	sent, err := os.Create(filepath.Join(t.TempDir(), "sent"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sent.Close() }()
	go func() {
		d := &daemon{t: t, conn: there}
		proc, serial, body := d.receive()
		dec := decoder{buf: body}
		if count, domain := dec.u32(), dec.domain(); proc != procDomainOpenGraphics || count != 1 || domain != testDomain {
			t.Errorf("procedure %d with %d descriptors for %+v", proc, count, domain)
		}
		control := make([]byte, 64)
		data := make([]byte, 1)
		_, n, _, _, err := there.ReadMsgUnix(data, control)
		if err != nil {
			t.Error(err)
		}
		messages, err := unix.ParseSocketControlMessage(control[:n])
		if err != nil || len(messages) != 1 {
			t.Errorf("%d control messages (%v)", len(messages), err)
			return
		}
		fds, err := unix.ParseUnixRights(&messages[0])
		if err != nil || len(fds) != 1 {
			t.Errorf("%d descriptors (%v)", len(fds), err)
			return
		}
		got := os.NewFile(uintptr(fds[0]), "got")
		_, _ = got.WriteString("hello")
		_ = got.Close()
		d.send(proc, typeReply, serial, statusOK, nil)
	}()
	if err := c.OpenGraphics(context.Background(), testDomain, sent, GraphicsSkipAuth); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(sent.Name()); err != nil || string(text) != "hello" {
		t.Errorf("%q (%v)", text, err)
	}
}

func TestDescriptorNeedsUnixSocket(t *testing.T) {
	c, d := newPair(t)
	go func() { _, _ = io.Copy(io.Discard, d.conn) }()
	if err := c.OpenGraphics(context.Background(), testDomain, os.Stdin, 0); err == nil {
		t.Error("a descriptor was sent over a pipe")
	}
}
