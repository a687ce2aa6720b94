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
	"slices"
	"sync"
	"testing"
	"time"
)

// hostileDaemon returns a connection to a daemon that waits for a call, sends the given bytes and closes the
// connection.
type hostileDaemon struct {
	net.Conn
	sent     *bytes.Reader
	requests chan struct{}
	once     sync.Once
}

func (d *hostileDaemon) Read(p []byte) (int, error) {
	<-d.requests
	return d.sent.Read(p)
}

func (d *hostileDaemon) Write(p []byte) (int, error) {
	d.once.Do(func() { close(d.requests) })
	return len(p), nil
}

func (*hostileDaemon) Close() error                       { return nil }
func (*hostileDaemon) SetWriteDeadline(_ time.Time) error { return nil }

// FuzzClient checks that each call ends whatever a daemon sends, and that its result is not longer than what was sent.
func FuzzClient(f *testing.F) {
	response := func(kind, serial, status uint32, body []byte) []byte {
		return message(header{program: programRemote, kind: kind, serial: serial, status: status}, body)
	}
	var domain, text, failure encoder
	domain.domain(testDomain)
	text.str("<capabilities/>")
	failure.i32(38)
	failure.i32(0)
	failure.optionalStr("no")
	f.Add(uint8(0), response(typeReply, 1, statusOK, domain.buf))
	f.Add(uint8(1), response(typeReply, 1, statusOK, text.buf))
	f.Add(uint8(2), response(typeReply, 1, statusOK, append([]byte{0, 0, 0, 1}, text.buf...)))
	f.Add(uint8(3), response(typeReply, 1, statusOK, append([]byte{0, 0, 0, 4, 1, 2, 3, 4}, text.buf...)))
	f.Add(uint8(4), slices.Concat(response(typeReply, 1, statusOK, text.buf),
		response(typeStream, 1, statusContinue, []byte("hello")), response(typeStream, 1, statusOK, nil)))
	f.Add(uint8(0), response(typeReply, 1, 1, failure.buf))
	event := slices.Concat([]byte{0, 0, 0, 0}, domain.buf, []byte{0, 0, 0, 2, 0, 0, 0, 0})
	f.Add(uint8(5), message(header{program: programRemote, proc: procEventLifecycleMessage, kind: typeMessage}, event))
	f.Fuzz(func(t *testing.T, which uint8, sent []byte) {
		c := newClient(&hostileDaemon{sent: bytes.NewReader(sent), requests: make(chan struct{})}, Large{})
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for range c.Events() {
			}
		}()
		if got := callOne(c, which); got > len(sent) {
			t.Errorf("%d bytes became %d", len(sent), got)
		}
		c.Close()
		<-c.Done()
		<-ended
	})
}

// callOne makes one of the calls and returns the length of the result.
func callOne(c *Client, which uint8) int {
	ctx := context.Background()
	switch which % 7 {
	case 0:
		d, _ := c.Lookup(ctx, "vm")
		return len(d.Name)
	case 1:
		text, _ := c.Capabilities(ctx)
		return len(text)
	case 2:
		response, _ := c.AgentCommandLong(ctx, testDomain, "{}", time.Second)
		return len(response)
	case 3:
		cookie, xml, _ := c.MigrateBegin(ctx, testDomain, nil, 0)
		return len(cookie) + len(xml)
	case 4:
		stream, mime, err := c.Screenshot(ctx, testDomain)
		if err != nil {
			return len(mime)
		}
		image, _ := io.ReadAll(stream)
		return len(mime) + len(image)
	case 5:
		state, _, _ := c.State(ctx, testDomain)
		return min(int(state), 0)
	default:
		next, uri, _ := c.MigratePrepare(ctx, nil, nil, 0)
		return len(next) + len(uri)
	}
}

// FuzzPass checks that of the messages of a peer only the first valid ones are forwarded, and each call of a migration
// once.
func FuzzPass(f *testing.F) {
	call := func(proc int32, body []byte) []byte {
		return message(header{program: programRemote, proc: proc, kind: typeCall, serial: 1}, body)
	}
	f.Add(true, slices.Concat(call(procConnectOpen, []byte("body")), call(procMigratePrepare, nil),
		call(procMigrateFinish, nil)))
	f.Add(true, slices.Concat(call(procConnectOpen, nil), call(procConnectOpen, nil)))
	f.Add(true, call(procDomainDestroyFlags, nil))
	f.Add(false, message(header{program: programRemote, proc: procConnectOpen, kind: typeReply, serial: 1},
		[]byte("response")))
	f.Fuzz(func(t *testing.T, calls bool, sent []byte) {
		direction := Direction(MigrationResponses)
		if calls {
			direction = MigrationCalls()
		}
		var passed bytes.Buffer
		err := Pass(&passed, bytes.NewReader(sent), direction)
		if err == nil || !bytes.HasPrefix(sent, passed.Bytes()) {
			t.Fatalf("it ended with %v, and the forwarded bytes are not the first ones that were sent", err)
		}
		if errors.Is(err, io.EOF) && passed.Len() != len(sent) {
			t.Errorf("of %d bytes %d were forwarded, and the others were valid", len(sent), passed.Len())
		}
		expectAllowed(t, calls, passed.Bytes())
	})
}

// expectAllowed checks the forwarded messages without the code under test.
func expectAllowed(t *testing.T, calls bool, passed []byte) {
	t.Helper()
	seen := map[uint32]bool{}
	for len(passed) >= headerSize {
		word := func(i int) uint32 { return binary.BigEndian.Uint32(passed[4*i:]) }
		size, program, proc, kind := word(0), word(1), word(3), word(4)
		switch {
		case program == programKeepAlive:
		case program != programRemote:
			t.Fatalf("program %#x", program)
		case calls && (kind != typeCall || seen[proc] || !slices.Contains(migrationCalls, int32(proc))):
			t.Fatalf("type %d of procedure %d, which had been called: %v", kind, proc, seen[proc])
		case !calls && kind != typeReply && kind != typeMessage:
			t.Fatalf("type %d", kind)
		}
		if program == programRemote {
			seen[proc] = true
		}
		passed = passed[min(int(size), len(passed)):]
	}
}

// FuzzXDR checks that decoding, encoding and decoding again returns the same values.
func FuzzXDR(f *testing.F) {
	var seed encoder
	seed.domain(testDomain)
	seed.optionalStr("text")
	seed.opaque([]byte{1, 2, 3})
	f.Add(seed.buf)
	f.Fuzz(func(t *testing.T, raw []byte) {
		first := decoder{buf: raw}
		domain, text, blob := first.domain(), first.optionalStr(), first.opaque()
		if first.err != nil {
			return
		}
		var again encoder
		again.domain(domain)
		again.optionalStr(text)
		again.opaque(blob)
		second := decoder{buf: again.buf}
		if d, s, b := second.domain(), second.optionalStr(), second.opaque(); second.err != nil || d != domain || s != text ||
			!bytes.Equal(b, blob) {
			t.Errorf("%+v %q %x became %+v %q %x (%v)", domain, text, blob, d, s, b, second.err)
		}
	})
}
