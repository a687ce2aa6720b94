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

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/wire/libvirtwire"
)

const (
	// MaxMessage is the limit for a message from a launcher in bytes. libvirt allows 32 MiB; the largest regular response,
	// a domain's XML, has less than 100 KiB.
	MaxMessage = 1 << 20
	// bytesPerSecond and burstBytes limit what the agent reads from a launcher, messagesPerSecond and burstMessages the
	// messages that are not responses. A launcher that sends more is throttled, which affects no other launcher.
	bytesPerSecond    = 4 << 20
	burstBytes        = 8 << 20
	messagesPerSecond = 200
	burstMessages     = 400
	// BurstEvents is how many events the agent handles without a delay. A start or a migration has fewer than ten. Further
	// events are dropped, and the agent reconciles once after eventInterval, when the next one is allowed.
	BurstEvents   = 20
	eventInterval = 2 * time.Second
	// RelayBytes is the size of a relay's buffers, one for each direction. It is exported for the test in
	// cmd/virt-handler/agent that adds up the memory that launchers can make an agent use.
	RelayBytes = 2 * libvirtwire.BufferBytes
	// largeResponseTimeout is how long a launcher may take to send a large response after its header.
	largeResponseTimeout = 10 * time.Second
)

// errMessage is the cause of the end of a connection to a launcher that sends messages that are too long.
var errMessage = errors.New("the launcher's libvirtd sent a message of a length that is not allowed")

// relay is a socket of the agent that libvirt's client connects to. It forwards the client's calls to the verified
// connection with the launcher, and their responses and events back. After it is closed by cut, every call of the
// client returns.
type relay struct {
	path     string
	listener *net.UnixListener
	launcher *net.UnixConn
	session  *libvirtwire.Session
	// missed is called after events were dropped. It must not block.
	missed func()

	bytes, messages, events *rate.Limiter
	// missing reports whether a call of missed is scheduled.
	missing atomic.Bool

	// large admits one large response at a time.
	large largeResponse
	// deadlines are those of the calls in progress.
	deadlines deadlines

	// ctx ends when the relay is closed, with the reason as its cause.
	ctx    context.Context
	cancel context.CancelCauseFunc

	mu     sync.Mutex
	client *net.UnixConn
}

// newRelay creates the socket in dir, which only the agent may enter, and serves one client.
func newRelay(dir string, launcher *net.UnixConn, missed func()) (*relay, error) {
	// The name must be fresh and short: a socket's path has at most 108 bytes.
	temp, err := os.MkdirTemp(dir, "r")
	if err != nil {
		return nil, fmt.Errorf("create a directory for the relay: %w", err)
	}
	path := filepath.Join(temp, "s")
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: path})
	if err != nil {
		_ = os.RemoveAll(temp)
		return nil, fmt.Errorf("create the relay's socket: %w", err)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	r := &relay{
		path: path, listener: listener, launcher: launcher, session: libvirtwire.NewSession(), missed: missed, ctx: ctx,
		cancel: cancel,
		bytes:  rate.NewLimiter(bytesPerSecond, burstBytes), messages: rate.NewLimiter(messagesPerSecond, burstMessages),
		events: rate.NewLimiter(rate.Every(eventInterval), BurstEvents),
	}
	go r.serve()
	return r, nil
}

func (r *relay) serve() {
	client, err := r.listener.AcceptUnix()
	// There is only one client, so the name is not needed any more.
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
	r.cut(r.session.Responses(client, r.launcher, r.admit))
}

// admit enforces the limits for messages from the launcher.
func (r *relay) admit(kind libvirtwire.Kind, size int) (bool, error) {
	if size > MaxMessage {
		return false, fmt.Errorf("%w: %d bytes", errMessage, size)
	}
	if err := r.bytes.WaitN(r.ctx, size); err != nil {
		return false, err
	}
	if kind == libvirtwire.KindReply {
		// Their number is limited by that of the calls.
		if size > hypervisor.SmallResponse {
			return true, r.large.admit(r)
		}
		return true, nil
	}
	if err := r.messages.Wait(r.ctx); err != nil {
		return false, err
	}
	if kind == libvirtwire.KindKeepAlive || r.events.Allow() {
		return true, nil
	}
	if r.missing.CompareAndSwap(false, true) {
		time.AfterFunc(eventInterval, func() {
			// Before the call: an event that is dropped during it schedules another call.
			r.missing.Store(false)
			if r.ctx.Err() == nil {
				r.missed()
			}
		})
	}
	return false, nil
}

// cut closes the relay. Only the first cause is kept.
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

// done returns a channel that is closed when the relay is closed.
func (r *relay) done() <-chan struct{} { return r.ctx.Done() }

// err returns why the relay was closed. It is set when done is closed.
func (r *relay) err() error { return context.Cause(r.ctx) }

// Tunnel connects to the libvirtd of a Pod for another agent, after checking that it is the Pod's. The caller closes
// the connection, and limits what is sent over it.
func (m *Manager) Tunnel(ctx context.Context, pod hypervisor.PodRef) (net.Conn, error) {
	launcher, err := dialLauncher(ctx, m.options, pod.UID, false)
	if err != nil {
		return nil, err
	}
	return launcher, nil
}
