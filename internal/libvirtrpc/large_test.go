// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package libvirtrpc

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"
)

// newLimited is a client that is asked before it reads a message of more than 1 KiB, and the other end.
func newLimited(t *testing.T, admit func() error) (*Client, net.Conn) {
	t.Helper()
	here, there := net.Pipe()
	c := newClient(here, Large{Above: 1 << 10, Admit: admit, Patience: time.Hour})
	t.Cleanup(c.Close)
	t.Cleanup(func() { _ = there.Close() })
	return c, there
}

func TestALongMessageIsAdmittedBeforeItIsRead(t *testing.T) {
	asked := 0
	c, daemon := newLimited(t, func() error {
		if asked++; asked == 2 {
			return errors.New("no memory")
		}
		return nil
	})
	for i, size := range []int{1 << 10, 2 << 10, 2 << 10} {
		m := said(programRemote, procDomainGetState, typeReply, 99, statusOK, size)
		if i < 2 {
			if _, err := daemon.Write(m); err != nil {
				t.Fatalf("message %d: %v", i, err)
			}
			continue
		}
		// Nobody reads more of it than its header.
		if n, err := daemon.Write(m); err == nil || n != headerSize {
			t.Errorf("the client took %d bytes of a message that was not admitted (%v)", n, err)
		}
	}
	<-c.Done()
	if asked != 2 {
		t.Errorf("asked %d times", asked)
	}
}

func TestAStreamIsReadInPiecesHoweverLongItsMessages(t *testing.T) {
	c, daemon := newLimited(t, func() error { return errors.New("a stream's message is no long one") })
	s := &Stream{client: c, proc: procDomainOpenConsole, serial: 5, pieces: make(chan piece)}
	c.mu.Lock()
	c.streams[5] = s
	c.mu.Unlock()
	const size = 3*maxPiece + 1
	go func() {
		_, _ = daemon.Write(said(programRemote, procDomainOpenConsole, typeStream, 5, statusContinue, size))
		_, _ = daemon.Write(said(programRemote, procDomainOpenConsole, typeStream, 5, statusOK, 0))
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
