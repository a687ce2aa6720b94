// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package dhcp

import (
	"context"
	"errors"
	"net"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// receiver is a connection whose reads end with these errors, one after the other, and then with the connection.
type receiver struct {
	net.PacketConn
	reads  []error
	closed bool
}

func (r *receiver) ReadFrom(buf []byte) (int, net.Addr, error) {
	if len(r.reads) == 0 || r.closed {
		return 0, nil, net.ErrClosed
	}
	err := r.reads[0]
	r.reads = r.reads[1:]
	return copy(buf, "packet"), nil, err
}

func (r *receiver) Close() error {
	r.closed = true
	return nil
}

// A server that cannot receive goes on, without using up a CPU. It ends with its bridge.
func TestServeAfterFailures(t *testing.T) {
	errRefused := errors.New("no such packet")
	for name, tc := range map[string]struct {
		reads   []error
		handle  func() error
		packets int
		after   time.Duration
	}{
		"packets":                  {slices.Repeat([]error{nil}, 3), func() error { return nil }, 3, 0},
		"packets that are invalid": {slices.Repeat([]error{nil}, 3), func() error { return errRefused }, 3, 0},
		"packets that panic":       {slices.Repeat([]error{nil}, 3), func() error { panic("index out of range") }, 3, 0},
		"a bridge that is down":    {[]error{unix.ENETDOWN, unix.ENETDOWN, nil}, func() error { return nil }, 1, 2 * failurePause},
		"a bridge that is removed": {[]error{unix.ENODEV, nil}, func() error { return nil }, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin, packets := time.Now(), 0
				conn := &receiver{reads: tc.reads}
				serve(t.Context(), "DHCPv4", func(context.Context) (net.PacketConn, error) { return conn, nil },
					func(_ net.PacketConn, _ net.Addr, packet []byte) error {
						if string(packet) == "packet" {
							packets++
						}
						return tc.handle()
					})
				if after := time.Since(begin); packets != tc.packets || after != tc.after || !conn.closed {
					t.Errorf("%d packets within %s, closed: %t", packets, after, conn.closed)
				}
			})
		})
	}
}
