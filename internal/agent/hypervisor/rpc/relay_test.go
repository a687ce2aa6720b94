// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"errors"
	"io"
	"net"
	"path/filepath"
	"testing"
)

// TestErrIsSetWhenDoneIsClosed reads the reason for the end of a connection as soon as Done is closed.
func TestErrIsSetWhenDoneIsClosed(t *testing.T) {
	dir := t.TempDir()
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: filepath.Join(dir, "launcher")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	for range 2000 {
		launcher, err := net.DialUnix("unix", nil, listener.Addr().(*net.UnixAddr))
		if err != nil {
			t.Fatal(err)
		}
		r, err := newRelay(dir, launcher, func() {})
		if err != nil {
			t.Fatal(err)
		}
		const waiting = 2
		ended := make(chan error, waiting)
		for range waiting {
			go func() {
				// This is as early as possible.
				for r.ctx.Err() == nil {
				}
				ended <- r.err()
			}()
		}
		r.cut(io.EOF)
		r.cut(net.ErrClosed)
		for range waiting {
			if err := <-ended; !errors.Is(err, io.EOF) {
				t.Fatalf("the connection ended because of %v, and not of what came first", err)
			}
		}
	}
}
