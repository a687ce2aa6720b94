// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package libvirtwire

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"
)

// newLimited returns a client that calls Admit for messages of more than 1 KiB, and the other end of its connection.
func newLimited(t *testing.T, admit func() error) (*Client, net.Conn) {
	t.Helper()
	here, there := net.Pipe()
	c := newClient(here, Large{Above: 1 << 10, Admit: admit, Timeout: time.Hour})
	t.Cleanup(c.Close)
	t.Cleanup(func() { _ = there.Close() })
	return c, there
}

func TestLongMessageIsAdmittedBeforeItIsRead(t *testing.T) {
	requests := 0
	c, daemon := newLimited(t, func() error {
		if requests++; requests == 2 {
			return errors.New("no memory")
		}
		return nil
	})
	for i, size := range []int{1 << 10, 2 << 10, 2 << 10} {
		m := packet(programRemote, procDomainGetState, typeReply, 99, statusOK, size)
		if i < 2 {
			if _, err := daemon.Write(m); err != nil {
				t.Fatalf("message %d: %v", i, err)
			}
			continue
		}
		// Only its header is read.
		if n, err := daemon.Write(m); err == nil || n != headerSize {
			t.Errorf("the client read %d bytes of a message that was not admitted (%v)", n, err)
		}
	}
	<-c.Done()
	if requests != 2 {
		t.Errorf("Admit was called %d times", requests)
	}
}

func TestStreamIsReadInPieces(t *testing.T) {
	c, daemon := newLimited(t, func() error { return errors.New("a stream's message is no long one") })
	s := &Stream{client: c, proc: procDomainOpenConsole, serial: 5, pieces: make(chan piece)}
	c.mu.Lock()
	c.streams[5] = s
	c.mu.Unlock()
	const size = 3*maxPiece + 1
	go func() {
		_, _ = daemon.Write(packet(programRemote, procDomainOpenConsole, typeStream, 5, statusContinue, size))
		_, _ = daemon.Write(packet(programRemote, procDomainOpenConsole, typeStream, 5, statusOK, 0))
	}()
	pieces := 0
	for got := 0; got < size; pieces++ {
		next := <-s.pieces
		if len(next.data) > maxPiece || next.err != nil {
			t.Fatalf("a piece of %d bytes, %v", len(next.data), next.err)
		}
		got += len(next.data)
	}
	if pieces != 4 {
		t.Errorf("%d pieces", pieces)
	}
	if n, err := s.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("the end: %d, %v", n, err)
	}
}
