// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package limits

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"slices"
	"sync"
)

// listener is a listener that limits the number of open connections. A new connection beyond the limit closes the
// oldest one that is not protected, of the client that has most. If it waited instead, a client that opens connections
// and sends nothing could keep out all others: the kubelet's probes would fail, and the kubelet would kill the process.
// And if it closed the oldest one of all, such a client would close the connections of all others.
type listener struct {
	net.Listener
	limit int

	mu sync.Mutex
	// open contains the open connections, the oldest first.
	open []*conn
	// clients contains the clients that have open connections, by their addresses.
	clients map[string]*client
}

// client is an address from which there are connections: in a cluster, a Pod or a node.
type client struct {
	address string
	// connections is how many of its connections are open. The listener's mutex guards it.
	connections int
}

// Connections returns a listener that limits the number of open connections of another one. A new connection beyond the
// limit closes the oldest one that is not protected, of the address that has most connections.
func Connections(l net.Listener, limit int) net.Listener {
	return &listener{Listener: l, limit: limit, clients: map[string]*client{}}
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	accepted, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: accepted, listener: l}
	if closed := l.add(c, addressOf(accepted)); closed != nil {
		_ = closed.Close()
	}
	return c, nil
}

// addressOf returns the address of a connection's client, without the port.
func addressOf(c net.Conn) string {
	remote := c.RemoteAddr().String()
	if host, _, err := net.SplitHostPort(remote); err == nil {
		return host
	}
	return remote
}

// add adds a connection and returns the one to close in exchange, or nil. This may be the new one itself.
func (l *listener) add(c *conn, address string) *conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	from, known := l.clients[address]
	if !known {
		from = &client{address: address}
		l.clients[address] = from
	}
	from.connections++
	c.from, l.open = from, append(l.open, c)
	if len(l.open) <= l.limit {
		return nil
	}
	// The new connection is not protected yet, so there is one to close.
	var closed *conn
	for _, other := range l.open {
		if other.protected == 0 && (closed == nil || other.from.connections > closed.from.connections) {
			closed = other
		}
	}
	l.remove(closed)
	return closed
}

// remove removes a connection, unless it was removed before. The caller holds the mutex.
func (l *listener) remove(c *conn) {
	i := slices.Index(l.open, c)
	if i < 0 {
		return
	}
	l.open = slices.Delete(l.open, i, i+1)
	if c.from.connections--; c.from.connections == 0 {
		delete(l.clients, c.from.address)
	}
}

// protect changes the number of protections of a connection.
func (l *listener) protect(c *conn, change int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c.protected += change
}

type conn struct {
	net.Conn
	listener *listener
	from     *client
	// protected is how many callers protect the connection. The listener's mutex guards it.
	protected int
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.listener.mu.Lock()
	c.listener.remove(c)
	c.listener.mu.Unlock()
	return c.Conn.Close()
}

// key is the key of a request's connection in its context.
type key struct{}

// ConnContext is the ConnContext of an http.Server whose requests Protect their connections.
func ConnContext(ctx context.Context, c net.Conn) context.Context {
	if encrypted, ok := c.(*tls.Conn); ok {
		c = encrypted.NetConn()
	}
	if limited, ok := c.(*conn); ok {
		return context.WithValue(ctx, key{}, limited)
	}
	return ctx
}

// Protect protects the connection of the request with this context until the returned function is called: new
// connections do not close it. Protect fewer connections than the limit; otherwise new ones are closed at once.
func Protect(ctx context.Context) (release func()) {
	c, ok := ctx.Value(key{}).(*conn)
	if !ok {
		return func() {}
	}
	c.listener.protect(c, 1)
	return func() { c.listener.protect(c, -1) }
}

// Protected returns a handler that protects the connections of the first limit requests that it serves at a time. Its
// server has ConnContext as its ConnContext.
func Protected(handler http.Handler, limit int) http.Handler {
	free := make(chan struct{}, limit)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case free <- struct{}{}:
			defer func() { <-free }()
			defer Protect(r.Context())()
		default:
		}
		handler.ServeHTTP(w, r)
	})
}
