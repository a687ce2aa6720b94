// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package libvirtwire

import (
	"encoding/binary"
	"errors"
	"io"
	"testing"
	"time"
)

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
