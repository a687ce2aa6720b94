// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package connectionlimit limits the number of open connections of a server to which anyone can connect.
package connectionlimit

import (
	"context"
	"crypto/tls"
	"net"
	"slices"
	"sync"
)

// listener is a listener that limits the number of open connections. A new connection beyond the limit closes the oldest that is not
// protected. If it waited instead, a client that opens connections and sends nothing could keep out all others: the kubelet's probes would
// fail, and the kubelet would kill the process.
type listener struct {
	net.Listener
	limit int

	mu sync.Mutex
	// open contains the open connections, the oldest first.
	open []*conn
}

// New returns a listener that limits the number of open connections of another one. A new connection beyond the limit closes the oldest
// that is not protected.
func New(l net.Listener, limit int) net.Listener {
	return &listener{Listener: l, limit: limit}
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	accepted, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: accepted, listener: l}
	if oldest := l.add(c); oldest != nil {
		_ = oldest.Close()
	}
	return c, nil
}

// add adds a connection and returns the one to close in exchange, or nil. This is the new one itself if all others are protected.
func (l *listener) add(c *conn) *conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open = append(l.open, c)
	if len(l.open) <= l.limit {
		return nil
	}
	i := slices.IndexFunc(l.open, func(other *conn) bool { return other.protected == 0 })
	oldest := l.open[i]
	l.open = slices.Delete(l.open, i, i+1)
	return oldest
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
	// protected is how many callers protect the connection. The listener's mutex guards it.
	protected int
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.listener.mu.Lock()
	c.listener.open = slices.DeleteFunc(c.listener.open, func(other *conn) bool { return other == c })
	c.listener.mu.Unlock()
	return c.Conn.Close()
}

// key is the key of a request's connection in its context.
type key struct{}

// Context is the ConnContext of an http.Server whose requests Protect their connections.
func Context(ctx context.Context, c net.Conn) context.Context {
	if encrypted, ok := c.(*tls.Conn); ok {
		c = encrypted.NetConn()
	}
	if limited, ok := c.(*conn); ok {
		return context.WithValue(ctx, key{}, limited)
	}
	return ctx
}

// Protect protects the connection of the request with this context until the returned function is called: new connections do not close it.
// Protect fewer connections than the limit; otherwise new ones are closed at once.
func Protect(ctx context.Context) (release func()) {
	c, ok := ctx.Value(key{}).(*conn)
	if !ok {
		return func() {}
	}
	c.listener.protect(c, 1)
	return func() { c.listener.protect(c, -1) }
}
