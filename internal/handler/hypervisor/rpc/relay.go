// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/time/rate"
)

const (
	// maxMessage bounds one message from a launcher. libvirt itself allows 32 MiB; the largest honest answer,
	// a domain's XML, stays below 100 KiB.
	maxMessage = 4 << 20
	// minMessage is the length of a message that is nothing but its own length and header.
	// Source: libvirt src/rpc/virnetmessage.h (VIR_NET_MESSAGE_LEN_MAX) and virnetprotocol.x.
	minMessage = 28
	// bytesPerSecond and burstBytes bound what a launcher can make the agent read. A launcher that sends more is
	// slowed down, which costs nobody but itself.
	bytesPerSecond = 4 << 20
	burstBytes     = 8 << 20
)

// errMessage is the end of a launcher that breaks the protocol's framing or caps.
var errMessage = errors.New("the launcher's libvirtd sent a message of a length that is not allowed")

// relay is a socket of the agent's own that libvirt's client connects to. It copies to and from the checked
// connection with the launcher. Cutting it makes every call of the client return.
type relay struct {
	path     string
	listener *net.UnixListener
	launcher *net.UnixConn

	// ctx ends when the relay has been cut, with why as its cause.
	ctx    context.Context
	cancel context.CancelCauseFunc

	mu     sync.Mutex
	client *net.UnixConn
}

// newRelay makes the socket in dir, which only the agent may enter, and serves one client.
func newRelay(dir string, launcher *net.UnixConn) (*relay, error) {
	// The name must be fresh and short: a socket's path has at most 108 bytes.
	temp, err := os.MkdirTemp(dir, "r")
	if err != nil {
		return nil, fmt.Errorf("make a directory for the relay: %w", err)
	}
	path := filepath.Join(temp, "s")
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: path})
	if err != nil {
		_ = os.RemoveAll(temp)
		return nil, fmt.Errorf("make the relay's socket: %w", err)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	r := &relay{path: path, listener: listener, launcher: launcher, ctx: ctx, cancel: cancel}
	go r.serve()
	return r, nil
}

func (r *relay) serve() {
	client, err := r.listener.AcceptUnix()
	// One client is all there will ever be: the name can go.
	_ = r.listener.Close()
	_ = os.RemoveAll(filepath.Dir(r.path))
	if err != nil {
		r.cut(err)
		return
	}
	r.mu.Lock()
	r.client = client
	r.mu.Unlock()
	if r.ctx.Err() != nil {
		_ = client.Close()
		return
	}
	go func() {
		_, err := io.Copy(r.launcher, client)
		r.cut(orEOF(err))
	}()
	r.cut(orEOF(r.copyMessages(client, r.launcher)))
}

// copyMessages copies what the launcher sends, message by message, within the caps.
func (r *relay) copyMessages(to io.Writer, from io.Reader) error {
	limiter := rate.NewLimiter(bytesPerSecond, burstBytes)
	buffer := make([]byte, 64<<10)
	header := buffer[:4]
	for {
		if _, err := io.ReadFull(from, header); err != nil {
			return err
		}
		length := binary.BigEndian.Uint32(header)
		if length < minMessage || length > maxMessage {
			return fmt.Errorf("%w: %d bytes", errMessage, length)
		}
		if err := limiter.WaitN(r.ctx, int(length)); err != nil {
			return err
		}
		if _, err := to.Write(header); err != nil {
			return err
		}
		if _, err := io.CopyBuffer(struct{ io.Writer }{to}, io.LimitReader(from, int64(length)-4), buffer); err != nil {
			return err
		}
	}
}

// cut ends the relay; the first cause stays.
func (r *relay) cut(cause error) {
	r.cancel(cause)
	r.mu.Lock()
	defer r.mu.Unlock()
	_ = r.listener.Close()
	_ = r.launcher.Close()
	if r.client != nil {
		_ = r.client.Close()
	}
}

// done is closed when the relay has been cut.
func (r *relay) done() <-chan struct{} { return r.ctx.Done() }

// err says why the relay was cut. There is an answer from the moment in which done is closed.
func (r *relay) err() error { return context.Cause(r.ctx) }

func orEOF(err error) error {
	if err == nil {
		return io.EOF
	}
	return err
}
