// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package portforward

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"

	"github.com/coder/websocket"

	"github.com/vireo-project/vireo/internal/virtctl/subresources"
)

// exhausted is a listener of a process without file descriptors. It fails some times, and then is closed.
type exhausted struct {
	net.Listener
	net.PacketConn
	failures int
}

func (e *exhausted) fail() error {
	if e.failures--; e.failures < 0 {
		return net.ErrClosed
	}
	return syscall.EMFILE
}

func (e *exhausted) Accept() (net.Conn, error) { return nil, e.fail() }

func (e *exhausted) ReadFrom([]byte) (int, net.Addr, error) { return 0, nil, e.fail() }

func (e *exhausted) Close() error { return nil }

func (e *exhausted) Addr() net.Addr { return nil }

// TestPauseAfterFailures: a failure that lasts must not keep a CPU busy.
func TestPauseAfterFailures(t *testing.T) {
	const failures = 3
	for protocol, serve := range map[string]func(*forwarder){
		tcp: func(f *forwarder) { f.serveTCP(t.Context(), &exhausted{failures: failures}, port{protocol: tcp}) },
		udp: func(f *forwarder) { f.serveUDP(t.Context(), &exhausted{failures: failures}, port{protocol: udp}) },
	} {
		pauses, errOut := 0, &bytes.Buffer{}
		serve(&forwarder{dial: &Dialer{}, errOut: errOut, wait: func(context.Context) { pauses++ }})
		if pauses != failures || strings.Count(errOut.String(), "too many open files") != failures {
			t.Errorf("%s: %d pauses after %d failures, and %q", protocol, pauses, failures, errOut)
		}
	}
}

func TestIgnoreClosed(t *testing.T) {
	for _, tc := range []struct {
		name    string
		err     error
		ignored bool
	}{
		{"nothing", nil, true},
		{"closed by the guest", io.EOF, true},
		{"closed locally", net.ErrClosed, true},
		{"a normal closure with a reason", &subresources.ClosedError{Code: websocket.StatusNormalClosure, Reason: "the guest closed"}, true},
		{"virt-api shuts down", &subresources.ClosedError{Code: websocket.StatusGoingAway}, false},
		{"an error in a close frame", &subresources.ClosedError{Code: websocket.StatusInternalError, Reason: "connection refused"}, false},
		{"another error", errors.New("no route"), false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := ignoreClosed(tc.err); (got == nil) != tc.ignored {
				t.Errorf("got %v", got)
			}
		})
	}
}
