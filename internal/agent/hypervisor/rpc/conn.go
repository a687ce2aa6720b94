// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package rpc connects to the libvirtd of a launcher Pod from the node, with libvirt's own protocol over the unix
// socket in the Pod's emptyDir.
//
// The launcher may be hostile. So virt-broker connects to the socket: it follows no symlink, and checks that the
// process behind the socket belongs to the Pod. libvirt's client connects through a relay that the agent can close at
// any time. Every call has a deadline, and responses are capped. Every failure on that path is a
// hypervisor.ErrUnreachable: the guest's state is then unknown.
package rpc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"libvirt.org/go/libvirt"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

const (
	// connectTimeout covers libvirtd's start: it accepts connections before its drivers are ready.
	connectTimeout = 30 * time.Second
	// queryTimeout bounds calls to which libvirtd responds by itself.
	queryTimeout = 15 * time.Second
	// actTimeout bounds calls for which libvirtd waits for other programs: qemu-img, or QEMU when it starts and
	// allocates the guest's memory.
	actTimeout = 3 * time.Minute
	// keepAliveSeconds and keepAliveCount detect a libvirtd that hangs between calls.
	keepAliveSeconds, keepAliveCount = 10, 3
)

// Broker opens sockets and files of launcher Pods. It checks that they are a launcher's, because the Pod may be
// hostile.
type Broker interface {
	// OpenSocket connects to a socket in a Pod's volume for sockets, after it exists if wait is set. An error wraps
	// fs.ErrNotExist or unix.ECONNREFUSED if there is no socket or nothing listens on it.
	OpenSocket(ctx context.Context, pod types.UID, name string, wait bool) (*net.UnixConn, error)
	// OpenFile opens a regular file for reading by its path in a directory where an image, overlays or the persistent
	// state are.
	OpenFile(ctx context.Context, pod types.UID, mount, name string) (*os.File, error)
	// SyncState returns when the persistent state is on the disk of its claim, with a complete state of the TPM if tpm is
	// its directory.
	SyncState(ctx context.Context, pod types.UID, tpm string) error
	// GiveHostDir makes QEMU's user the owner of a directory of the node, if the kubelet created it for the Pod.
	GiveHostDir(ctx context.Context, pod types.UID, dir string) error
	// WatchGuest returns a descriptor that becomes readable when the Pod's QEMU has exited.
	WatchGuest(ctx context.Context, pod types.UID) (*os.File, error)
}

// Options are the settings of connections.
type Options struct {
	// Broker opens what this process has no permission to. It is required.
	Broker Broker
	// RelayDir is a directory that only the agent may enter.
	RelayDir string
	// MaxCall is an additional timeout for each call. Zero means none.
	MaxCall time.Duration
	// Responses is the memory budget for large responses. It is required.
	Responses *hypervisor.ResponseBudget
	// FirstConnections is the time after the start over which new connections are spread. Zero means that they are made at
	// once.
	FirstConnections time.Duration
	// Clock is the clock to which the clocks of guests are set. It defaults to the node's.
	Clock clock.PassiveClock
	// Panicked is called after each panic of a guest's kernel, once Watch was called. It must not block. A Manager has its
	// own.
	Panicked func(vmi types.NamespacedName)
}

func (o *Options) clock() clock.PassiveClock {
	if o.Clock == nil {
		return clock.RealClock{}
	}
	return o.Clock
}

// check returns an error if an option that is required is missing.
func (o *Options) check() error {
	switch {
	case o.Responses == nil:
		return errors.New("no memory budget for responses: set Options.Responses")
	case o.Broker == nil:
		return errors.New("no access to launcher Pods: set Options.Broker")
	default:
		return nil
	}
}

// Conn is a connection to the libvirtd of one launcher Pod. It does not reconnect: once it has failed, the Manager
// closes it and makes a new one.
type Conn struct {
	options Options
	pod     hypervisor.PodRef
	relay   *relay
	guest   guestPoller
	// credentials sets access credentials in the guest.
	credentials credentialsSync
	// thaw thaws the guest's file systems after a freeze.
	thaw thawer
	// clock sets the guest's clock after it was resumed.
	clock  clockSetter
	notify func()
	// suspended and resumed are when the guest was last suspended and resumed according to libvirt's events, in
	// nanoseconds since 1970.
	suspended, resumed atomic.Int64
	// postCopy reports whether the current migration was switched to post-copy.
	postCopy atomic.Bool
	// lastResponse is when a call last got a response, in nanoseconds since 1970.
	lastResponse atomic.Int64

	// mu is held for reading during calls and for writing to close, because libvirt's handle must outlive its calls.
	mu      sync.RWMutex
	libvirt *libvirt.Connect
	closed  bool
}

// Dial connects to the libvirtd of a Pod whose socket exists. The context bounds the attempt only.
func Dial(ctx context.Context, o Options, pod hypervisor.PodRef) (*Conn, error) {
	return dial(ctx, o, pod, false)
}

// dial is Dial. It waits for the socket if wait is set.
func dial(ctx context.Context, o Options, pod hypervisor.PodRef, wait bool) (*Conn, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	if err := initLibvirt(); err != nil {
		return nil, err
	}
	if o.Panicked == nil {
		o.Panicked = func(types.NamespacedName) {}
	}
	launcher, err := dialLauncher(ctx, o, pod.UID, wait)
	if err != nil {
		return nil, err
	}
	c := &Conn{
		options: o, pod: pod, guest: guestPoller{trigger: make(chan struct{}, 1)},
		credentials: credentialsSync{trigger: make(chan struct{}, 1)}, thaw: newThawer(),
		clock: newClockSetter(o.clock()), notify: func() {},
	}
	if c.relay, err = newRelay(o.RelayDir, launcher, c.missedEvents); err != nil {
		_ = launcher.Close()
		return nil, err
	}
	if err := c.open(ctx); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// dialLauncher connects to a Pod's libvirtd.
func dialLauncher(ctx context.Context, o Options, pod types.UID, wait bool) (*net.UnixConn, error) {
	launcher, err := o.Broker.OpenSocket(ctx, pod, launcherpod.LibvirtSocketName, wait)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", hypervisor.ErrUnreachable, err)
	}
	return launcher, nil
}

// open connects libvirt's client to the relay.
func (c *Conn) open(ctx context.Context) error {
	return c.bounded(ctx, connectTimeout, "connect", func() error {
		handle, err := libvirt.NewConnect("qemu:///session?socket=" + c.relay.path)
		if err != nil {
			return err
		}
		c.libvirt = handle
		return handle.SetKeepAlive(keepAliveSeconds, keepAliveCount)
	})
}

// call runs a call of libvirt with a timeout.
func (c *Conn) call(ctx context.Context, limit time.Duration, what string, fn func(*libvirt.Connect) error) error {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.closed {
		return fmt.Errorf("%s: %w: the connection is closed", what, hypervisor.ErrUnreachable)
	}
	return c.bounded(ctx, limit, what, func() error { return fn(c.libvirt) })
}

// errSilent is the cause of the end of a connection whose libvirtd did not respond to a call within its timeout.
var errSilent = errors.New("no response in time")

// bounded runs fn and closes the relay on timeout, which makes a call of libvirt return.
func (c *Conn) bounded(ctx context.Context, limit time.Duration, what string, fn func() error) error {
	if c.options.MaxCall > 0 {
		limit = min(limit, c.options.MaxCall)
	}
	defer c.relay.deadlines.start(limit, func() { c.relay.cut(fmt.Errorf("%s: %w", what, errSilent)) })()
	stop := context.AfterFunc(ctx, func() { c.relay.cut(fmt.Errorf("%s: %w", what, context.Cause(ctx))) })
	defer stop()
	err := withMessage(fn())
	switch {
	case err == nil:
		c.lastResponse.Store(time.Now().UnixNano())
		return nil
	case c.relay.ctx.Err() != nil:
		return fmt.Errorf("%s: %w: %w: %w", what, hypervisor.ErrUnreachable, c.relay.err(), err)
	case isTransport(err):
		// The client may notice the end of the connection before the relay does.
		c.relay.cut(err)
		return fmt.Errorf("%s: %w: %w", what, hypervisor.ErrUnreachable, err)
	default:
		c.lastResponse.Store(time.Now().UnixNano())
		return fmt.Errorf("%s: %w", what, err)
	}
}

// failure is an error of libvirt with a text for users.
type failure struct {
	cause error
	text  string
}

// withMessage replaces the fields of libvirt's error in a text by its message.
func withMessage(err error) error {
	var e libvirt.Error
	if !errors.As(err, &e) {
		return err
	}
	return &failure{cause: err, text: strings.Replace(err.Error(), e.Error(), hypervisor.Failure(e.Message), 1)}
}

// Error returns the text.
func (f *failure) Error() string { return f.text }

// Unwrap returns libvirt's error.
func (f *failure) Unwrap() error { return f.cause }

// respondedAt returns when a call last got a response.
func (c *Conn) respondedAt() time.Time { return time.Unix(0, c.lastResponse.Load()) }

// isTransport reports whether an error is about the connection and not a response of libvirtd.
func isTransport(err error) bool {
	var e libvirt.Error
	if !errors.As(err, &e) {
		return false
	}
	return e.Domain == libvirt.FROM_RPC || e.Domain == libvirt.FROM_REMOTE || e.Code == libvirt.ERR_RPC ||
		e.Code == libvirt.ERR_NO_CONNECT || e.Code == libvirt.ERR_INVALID_CONN
}

// isCode reports whether libvirtd responded with an error of a code.
func isCode(err error, code libvirt.ErrorNumber) bool {
	var e libvirt.Error
	return errors.As(err, &e) && e.Code == code
}

// Pod returns the Pod of the connection.
func (c *Conn) Pod() hypervisor.PodRef { return c.pod }

// Done returns a channel that is closed when the connection has ended.
func (c *Conn) Done() <-chan struct{} { return c.relay.done() }

// Err returns why the connection has ended.
func (c *Conn) Err() error { return c.relay.err() }

// Close closes the connection and frees it after its calls have returned.
func (c *Conn) Close() {
	c.relay.cut(net.ErrClosed)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	c.closed = true
	if c.libvirt != nil {
		if _, err := c.libvirt.Close(); err != nil {
			log.Log.V(4).Info("Closing a libvirt connection failed", "pod", c.pod.UID, "error", err.Error())
		}
	}
}

// deadlines are the deadlines of a connection's calls. They are paused while the agent itself delays the responses: a
// launcher is not silent because others use up the memory for large responses.
type deadlines struct {
	mu      sync.Mutex
	paused  bool
	pending map[*deadline]struct{}
}

// deadline is the deadline of one call.
type deadline struct {
	// left is the time that was left at since, when the timer was last started.
	left  time.Duration
	since time.Time
	timer *time.Timer
}

// start calls expired after a time, unless stop is called before.
func (d *deadlines) start(limit time.Duration, expired func()) (stop func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.pending == nil {
		d.pending = map[*deadline]struct{}{}
	}
	call := &deadline{left: limit, since: time.Now(), timer: time.AfterFunc(limit, expired)}
	if d.paused {
		call.timer.Stop()
	}
	d.pending[call] = struct{}{}
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		call.timer.Stop()
		delete(d.pending, call)
	}
}

// pause pauses all deadlines until resume is called.
func (d *deadlines) pause() (resume func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.paused = true
	for call := range d.pending {
		// One that has expired already stays so.
		if call.timer.Stop() {
			call.left -= time.Since(call.since)
		} else {
			delete(d.pending, call)
		}
	}
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.paused = false
		for call := range d.pending {
			call.since = time.Now()
			call.timer.Reset(call.left)
		}
	}
}
