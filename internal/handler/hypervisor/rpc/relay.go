// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/vireo-project/vireo/internal/handler/hypervisor"
	"github.com/vireo-project/vireo/internal/libvirtrpc"
)

const (
	// MaxMessage bounds one message from a launcher. libvirt itself allows 32 MiB; the largest honest answer,
	// a domain's XML, stays below 100 KiB.
	MaxMessage = 1 << 20
	// bytesPerSecond and burstBytes bound what a launcher can make the agent read, messagesPerSecond and burstMessages how often without
	// being asked. A launcher that sends more is slowed down, which costs nobody but itself.
	bytesPerSecond    = 4 << 20
	burstBytes        = 8 << 20
	messagesPerSecond = 200
	burstMessages     = 400
	// BurstEvents is how many events reach the agent at once. A start or a migration has fewer than ten. Those that are too many are
	// dropped, and the agent reconciles once instead when the next one is allowed, after eventInterval.
	BurstEvents   = 20
	eventInterval = 2 * time.Second
	// RelayBytes are the buffers of a relay, one for each direction.
	RelayBytes = 2 * libvirtrpc.BufferBytes
	// answerPatience is how long a launcher may take to send an answer that is not small, of which it has said the length.
	answerPatience = 10 * time.Second
)

// errMessage is the end of a launcher whose messages are too long.
var errMessage = errors.New("the launcher's libvirtd sent a message of a length that is not allowed")

// relay is a socket of the agent's own that libvirt's client connects to. It copies to and from the checked connection with the
// launcher what belongs to the client's own calls and events. Cutting it makes every call of the client return.
type relay struct {
	path     string
	listener *net.UnixListener
	launcher *net.UnixConn
	session  *libvirtrpc.Session
	// missed is called after events were dropped. It must not block.
	missed func()

	bytes, messages, events *rate.Limiter
	// missing says that missed is going to be called.
	missing atomic.Bool

	// large lets one call after the other have an answer that is not small.
	large largeAnswer

	// ctx ends when the relay has been cut, with why as its cause.
	ctx    context.Context
	cancel context.CancelCauseFunc

	mu     sync.Mutex
	client *net.UnixConn
}

// newRelay makes the socket in dir, which only the agent may enter, and serves one client.
func newRelay(dir string, launcher *net.UnixConn, missed func()) (*relay, error) {
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
	r := &relay{
		path: path, listener: listener, launcher: launcher, session: libvirtrpc.NewSession(), missed: missed, ctx: ctx, cancel: cancel,
		bytes: rate.NewLimiter(bytesPerSecond, burstBytes), messages: rate.NewLimiter(messagesPerSecond, burstMessages),
		events: rate.NewLimiter(rate.Every(eventInterval), BurstEvents),
	}
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
		r.cut(r.session.Calls(r.launcher, client))
	}()
	r.cut(r.session.Answers(client, r.launcher, r.admit))
}

// admit keeps what the launcher sends within the caps.
func (r *relay) admit(kind libvirtrpc.Kind, size int) (bool, error) {
	if size > MaxMessage {
		return false, fmt.Errorf("%w: %d bytes", errMessage, size)
	}
	if err := r.bytes.WaitN(r.ctx, size); err != nil {
		return false, err
	}
	if kind == libvirtrpc.KindReply {
		// Calls are what bounds their number.
		if size > hypervisor.SmallAnswer {
			return true, r.large.admit(r)
		}
		return true, nil
	}
	if err := r.messages.Wait(r.ctx); err != nil {
		return false, err
	}
	if kind == libvirtrpc.KindKeepAlive || r.events.Allow() {
		return true, nil
	}
	if r.missing.CompareAndSwap(false, true) {
		time.AfterFunc(eventInterval, func() {
			// Before the check: an event that is dropped during it asks for another one.
			r.missing.Store(false)
			if r.ctx.Err() == nil {
				r.missed()
			}
		})
	}
	return false, nil
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
