// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package libvirtrpc

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

// hostileDaemon is a connection to a daemon that waits for a call, says one thing, whatever it was asked, and hangs up.
type hostileDaemon struct {
	net.Conn
	says  *bytes.Reader
	asked chan struct{}
	once  sync.Once
}

func (d *hostileDaemon) Read(p []byte) (int, error) {
	<-d.asked
	return d.says.Read(p)
}

func (d *hostileDaemon) Write(p []byte) (int, error) {
	d.once.Do(func() { close(d.asked) })
	return len(p), nil
}

func (*hostileDaemon) Close() error                       { return nil }
func (*hostileDaemon) SetWriteDeadline(_ time.Time) error { return nil }

// FuzzClient: whatever a daemon sends, each call comes to an end, and what it returns is no longer than what was sent.
func FuzzClient(f *testing.F) {
	answer := func(kind, serial, status uint32, body []byte) []byte {
		return message(header{program: programRemote, kind: kind, serial: serial, status: status}, body)
	}
	var domain, text, failure encoder
	domain.domain(testDomain)
	text.str("<capabilities/>")
	failure.i32(38)
	failure.i32(0)
	failure.optionalStr("no")
	f.Add(uint8(0), answer(typeReply, 1, statusOK, domain.buf))
	f.Add(uint8(1), answer(typeReply, 1, statusOK, text.buf))
	f.Add(uint8(2), answer(typeReply, 1, statusOK, append([]byte{0, 0, 0, 1}, text.buf...)))
	f.Add(uint8(3), answer(typeReply, 1, statusOK, append([]byte{0, 0, 0, 4, 1, 2, 3, 4}, text.buf...)))
	f.Add(uint8(4), slices.Concat(answer(typeReply, 1, statusOK, text.buf), answer(typeStream, 1, statusContinue, []byte("hello")), answer(typeStream, 1, statusOK, nil)))
	f.Add(uint8(0), answer(typeReply, 1, 1, failure.buf))
	event := slices.Concat([]byte{0, 0, 0, 0}, domain.buf, []byte{0, 0, 0, 2, 0, 0, 0, 0})
	f.Add(uint8(5), message(header{program: programRemote, proc: procEventLifecycleMessage, kind: typeMessage}, event))
	f.Fuzz(func(t *testing.T, which uint8, says []byte) {
		c := newClient(&hostileDaemon{says: bytes.NewReader(says), asked: make(chan struct{})}, Large{})
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for range c.Events() {
			}
		}()
		if got := callOne(c, which); got > len(says) {
			t.Errorf("%d bytes became %d", len(says), got)
		}
		c.Close()
		<-c.Done()
		<-ended
	})
}

// callOne makes one of the calls, and returns how long the answer is.
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
		answer, _ := c.AgentAnswer(ctx, testDomain, "{}", time.Second)
		return len(answer)
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

// FuzzPass: of what a peer sends nothing passes but the beginning, in whole headers, and each call of a migration once.
func FuzzPass(f *testing.F) {
	call := func(proc int32, body []byte) []byte {
		return message(header{program: programRemote, proc: proc, kind: typeCall, serial: 1}, body)
	}
	f.Add(true, slices.Concat(call(procConnectOpen, []byte("body")), call(procMigratePrepare, nil), call(procMigrateFinish, nil)))
	f.Add(true, slices.Concat(call(procConnectOpen, nil), call(procConnectOpen, nil)))
	f.Add(true, call(procDomainDestroyFlags, nil))
	f.Add(false, message(header{program: programRemote, proc: procConnectOpen, kind: typeReply, serial: 1}, []byte("answer")))
	f.Fuzz(func(t *testing.T, calls bool, says []byte) {
		direction := Direction(MigrationAnswers)
		if calls {
			direction = MigrationCalls()
		}
		var passed bytes.Buffer
		err := Pass(&passed, bytes.NewReader(says), direction)
		if err == nil || !bytes.HasPrefix(says, passed.Bytes()) {
			t.Fatalf("it ended with %v, and what passed is no beginning of what was sent", err)
		}
		if errors.Is(err, io.EOF) && passed.Len() != len(says) {
			t.Errorf("of %d bytes %d passed, and nothing was wrong with the others", len(says), passed.Len())
		}
		expectAllowed(t, calls, passed.Bytes())
	})
}

// expectAllowed looks at the messages that passed, without the code under test.
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

// FuzzXDR: what the decoder reads, the encoder writes, and the decoder reads as the same.
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
		if d, s, b := second.domain(), second.optionalStr(), second.opaque(); second.err != nil || d != domain || s != text || !bytes.Equal(b, blob) {
			t.Errorf("%+v %q %x became %+v %q %x (%v)", domain, text, blob, d, s, b, second.err)
		}
	})
}
