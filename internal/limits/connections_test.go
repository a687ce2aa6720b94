// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package limits

import (
	"crypto/tls"
	"errors"
	"net"
	"testing"
	"time"
)

// world is a listener with a limit.
type world struct {
	t        *testing.T
	listener net.Listener
}

func start(t *testing.T, limit int) *world {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	return &world{t: t, listener: Connections(listener, limit)}
}

// connect returns the server's side of a new connection.
func (w *world) connect() net.Conn {
	w.t.Helper()
	return w.connectFrom("127.0.0.1")
}

// connectFrom returns the server's side of a new connection from an address.
func (w *world) connectFrom(address string) net.Conn {
	w.t.Helper()
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	client, err := dialer.DialContext(w.t.Context(), "tcp", w.listener.Addr().String())
	if err != nil {
		w.t.Fatal(err)
	}
	accepted, err := w.listener.Accept()
	if err != nil {
		w.t.Fatal(err)
	}
	if !isOpen(accepted) {
		_ = client.Close()
		return accepted
	}
	w.t.Cleanup(func() {
		_ = client.Close()
		_ = accepted.Close()
	})
	return accepted
}

func isOpen(c net.Conn) bool { return !errors.Is(c.SetDeadline(time.Time{}), net.ErrClosed) }

func (w *world) expect(want string, conns ...net.Conn) {
	w.t.Helper()
	got := ""
	for _, c := range conns {
		if isOpen(c) {
			got += "o"
		} else {
			got += "-"
		}
	}
	if got != want {
		w.t.Errorf("open connections: got %s, want %s", got, want)
	}
}

func TestTheOldestIsClosed(t *testing.T) {
	w := start(t, 2)
	a, b := w.connect(), w.connect()
	w.expect("oo", a, b)
	c := w.connect()
	w.expect("-oo", a, b, c)
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	d := w.connect()
	w.expect("oo", c, d)
}

func TestProtectedConnectionsStayOpen(t *testing.T) {
	w := start(t, 2)
	a, b := w.connect(), w.connect()
	release := Protect(ConnContext(t.Context(), a))
	// As that of an HTTPS server.
	again := Protect(ConnContext(t.Context(), tls.Server(a, &tls.Config{MinVersion: tls.VersionTLS13})))
	c := w.connect()
	w.expect("o-o", a, b, c)
	again()
	d := w.connect()
	w.expect("o-o", a, c, d)
	release()
	e := w.connect()
	w.expect("-oo", a, d, e)
}

func TestTheLimitAppliesToProtectedConnections(t *testing.T) {
	w := start(t, 2)
	a, b := w.connect(), w.connect()
	for _, c := range []net.Conn{a, b} {
		defer Protect(ConnContext(t.Context(), c))()
	}
	w.expect("oo-", a, b, w.connect())
}

// A Pod that opens connections in a loop closes its own, and not those of Prometheus or the kubelet.
func TestOneClientCannotCloseTheConnectionsOfOthers(t *testing.T) {
	w := start(t, 6)
	first, other := w.connect(), w.connectFrom("127.0.0.3")
	for range 10_000 {
		_ = w.connectFrom("127.0.0.2")
	}
	w.expect("oo", first, other)
	// Who connects later gets a place, too.
	last := w.connect()
	w.expect("ooo", first, other, last)
	if limited := w.listener.(*listener); len(limited.open) != 6 || len(limited.clients) != 3 {
		t.Errorf("%d connections of %d clients are known", len(limited.open), len(limited.clients))
	}
}

// A client whose connections are all protected does not keep the others from being closed.
func TestOfClientsWithProtectedConnectionsOthersAreClosed(t *testing.T) {
	w := start(t, 3)
	a, b := w.connect(), w.connect()
	for _, c := range []net.Conn{a, b} {
		defer Protect(ConnContext(t.Context(), c))()
	}
	c, d := w.connectFrom("127.0.0.2"), w.connectFrom("127.0.0.3")
	w.expect("oo-o", a, b, c, d)
}

func TestClosedConnectionsAreForgotten(t *testing.T) {
	w := start(t, 2)
	for range 10 {
		c := w.connect()
		for range 2 {
			_ = c.Close()
		}
	}
	if limited := w.listener.(*listener); len(limited.open) != 0 || len(limited.clients) != 0 {
		t.Errorf("%d connections of %d clients are known", len(limited.open), len(limited.clients))
	}
}

// Without a listener's connection in the context, Protect does nothing, and does not panic.
func TestOtherConnectionsAreNotProtected(t *testing.T) {
	client, server := net.Pipe()
	defer func() { _, _ = client.Close(), server.Close() }()
	Protect(ConnContext(t.Context(), server))()
	Protect(t.Context())()
}
