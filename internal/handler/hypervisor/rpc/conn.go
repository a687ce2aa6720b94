// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"libvirt.org/go/libvirt"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/vireo-project/vireo/internal/handler/hypervisor"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

const (
	// connectTimeout covers libvirtd's start: it takes connections before its drivers are ready to answer.
	connectTimeout = 30 * time.Second
	// queryTimeout bounds calls that libvirtd answers by itself.
	queryTimeout = 15 * time.Second
	// actTimeout bounds calls for which libvirtd waits for other programs: qemu-img, or QEMU when it starts and
	// takes the guest's memory.
	actTimeout = 3 * time.Minute
	// keepAliveSeconds and keepAliveCount find a libvirtd that hangs between calls.
	keepAliveSeconds, keepAliveCount = 10, 3
)

// Options is what a connection needs to know about the node.
type Options struct {
	// PodsDir is the kubelet's directory of Pods.
	PodsDir string
	// RelayDir is a directory that only the agent may enter.
	RelayDir string
	// MaxCall bounds each call more tightly than the call itself does. Zero means that it does not.
	MaxCall time.Duration
	// Answers shares the memory for answers that are not small.
	Answers *hypervisor.Answers
	// FirstConnections is the time over which the connections are spread that are asked for within it, counted from the start. Zero means
	// that they are made at once.
	FirstConnections time.Duration
	// Container is the ID of a launcher Pod's container compute, or nothing if there is no such Pod any more. An error says that it is not
	// known yet. Nil takes a process of any container.
	Container func(pod types.UID) (string, error)
	// CheckPeer verifies the process behind a socket. Nil means the real check: QEMU's user, in the cgroup of that container.
	CheckPeer func(conn *net.UnixConn, pod types.UID) (*hypervisor.Process, error)
	// Clock has the time that guests are given. Nil means the node's.
	Clock clock.PassiveClock
}

func (o *Options) clock() clock.PassiveClock {
	if o.Clock == nil {
		return clock.RealClock{}
	}
	return o.Clock
}

// Conn is a connection to the libvirtd of one launcher Pod. It does not mend itself: once it has failed, it is
// closed and a new one is made.
type Conn struct {
	options Options
	pod     hypervisor.PodRef
	relay   *relay
	process *hypervisor.Process
	guest   guestPoller
	// credentials brings keys and passwords into the guest.
	credentials credentialsSync
	// thaw thaws a guest that was frozen.
	thaw thawer
	// clock sets the clock of a guest that runs on.
	clock  clockSetter
	notify func()
	// suspended is when the guest stopped last, by what libvirt has said, and resumed when it ran on, in nanoseconds since 1970.
	suspended, resumed atomic.Int64
	// postCopy says that the copy that goes on was asked to become a post-copy.
	postCopy atomic.Bool
	// answered is when a call got an answer last, in nanoseconds since 1970.
	answered atomic.Int64

	// mu is held for reading during calls and for writing to close, as libvirt's handle must outlive its calls.
	mu      sync.RWMutex
	libvirt *libvirt.Connect
	closed  bool
}

// Dial connects to the libvirtd of a Pod whose socket is there. The context bounds the attempt only.
func Dial(ctx context.Context, o Options, pod hypervisor.PodRef) (*Conn, error) {
	if err := startEventLoop(); err != nil {
		return nil, err
	}
	launcher, process, err := dialLauncher(o, pod.UID)
	if err != nil {
		return nil, err
	}
	c := &Conn{
		options: o, pod: pod, process: process, guest: guestPoller{kick: make(chan struct{}, 1)},
		credentials: credentialsSync{kick: make(chan struct{}, 1)}, thaw: thawer{kick: make(chan struct{}, 1)},
		clock: newClockSetter(o.clock()), notify: func() {},
	}
	if c.relay, err = newRelay(o.RelayDir, launcher, c.missedEvents); err != nil {
		_ = launcher.Close()
		_ = process.Dir.Close()
		return nil, err
	}
	if err := c.open(ctx); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// dialLauncher connects to a Pod's libvirtd.
func dialLauncher(o Options, pod types.UID) (*net.UnixConn, *hypervisor.Process, error) {
	launcher, process, err := dialSocket(o, pod, launcherpod.LibvirtSocketName)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", hypervisor.ErrUnreachable, err)
	}
	return launcher, process, nil
}

// dialSocket connects to the process behind a Pod's socket and makes sure that it is the Pod's.
func dialSocket(o Options, pod types.UID, name string) (*net.UnixConn, *hypervisor.Process, error) {
	check := o.CheckPeer
	if check == nil {
		check = o.checkPeer
	}
	socket, err := openSocket(o.PodsDir, pod, name)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = socket.Close() }()
	launcher, err := connectSocket(socket)
	if err != nil {
		return nil, nil, err
	}
	process, err := check(launcher, pod)
	if err != nil {
		_ = launcher.Close()
		return nil, nil, err
	}
	process.Pod = pod
	return launcher, process, nil
}

// checkPeer makes sure that a process is one of the Pod's container compute. In one that somebody adds for debugging, everything, the root
// directory too, is what that somebody wants.
func (o *Options) checkPeer(conn *net.UnixConn, pod types.UID) (*hypervisor.Process, error) {
	container := ""
	if o.Container != nil {
		var err error
		if container, err = o.Container(pod); err != nil {
			return nil, err
		}
	}
	return checkPeer(conn, pod, container)
}

// open lets libvirt's client connect to the relay.
func (c *Conn) open(ctx context.Context) error {
	// Without this the client starts a libvirtd of its own on the node when the relay is cut too early.
	if err := os.Setenv("LIBVIRT_AUTOSTART", "0"); err != nil {
		return err
	}
	return c.bounded(ctx, connectTimeout, "connect", func() error {
		handle, err := libvirt.NewConnect("qemu:///session?socket=" + c.relay.path)
		if err != nil {
			return err
		}
		c.libvirt = handle
		return handle.SetKeepAlive(keepAliveSeconds, keepAliveCount)
	})
}

// call runs a call of libvirt under a deadline.
func (c *Conn) call(ctx context.Context, limit time.Duration, what string, fn func(*libvirt.Connect) error) error {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.closed {
		return fmt.Errorf("%s: %w: the connection is closed", what, hypervisor.ErrUnreachable)
	}
	return c.bounded(ctx, limit, what, func() error { return fn(c.libvirt) })
}

// errSilent is the end of a connection whose libvirtd did not answer a call in the time that the call may take at most.
var errSilent = errors.New("no answer in time")

// bounded runs fn and cuts the relay when it takes too long, upon which a call of libvirt returns.
func (c *Conn) bounded(ctx context.Context, limit time.Duration, what string, fn func() error) error {
	if c.options.MaxCall > 0 {
		limit = min(limit, c.options.MaxCall)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errSilent)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { c.relay.cut(fmt.Errorf("%s: %w", what, context.Cause(ctx))) })
	defer stop()
	err := fn()
	switch {
	case err == nil:
		c.answered.Store(time.Now().UnixNano())
		return nil
	case c.relay.ctx.Err() != nil:
		return fmt.Errorf("%s: %w: %w: %w", what, hypervisor.ErrUnreachable, c.relay.err(), err)
	case isTransport(err):
		// The client may have given up on the connection before the relay noticed its end.
		c.relay.cut(err)
		return fmt.Errorf("%s: %w: %w", what, hypervisor.ErrUnreachable, err)
	default:
		c.answered.Store(time.Now().UnixNano())
		return fmt.Errorf("%s: %w", what, err)
	}
}

// lastAnswer is when a call got an answer last.
func (c *Conn) lastAnswer() time.Time { return time.Unix(0, c.answered.Load()) }

// isTransport says that an error is about the connection and no answer of libvirtd.
func isTransport(err error) bool {
	var e libvirt.Error
	if !errors.As(err, &e) {
		return false
	}
	return e.Domain == libvirt.FROM_RPC || e.Domain == libvirt.FROM_REMOTE || e.Code == libvirt.ERR_RPC ||
		e.Code == libvirt.ERR_NO_CONNECT || e.Code == libvirt.ERR_INVALID_CONN
}

// isCode says that libvirtd answered with an error of a code.
func isCode(err error, code libvirt.ErrorNumber) bool {
	var e libvirt.Error
	return errors.As(err, &e) && e.Code == code
}

// Pod says which Pod the connection leads to.
func (c *Conn) Pod() hypervisor.PodRef { return c.pod }

// Process is the libvirtd at the other end, as the way into the Pod's namespaces. It is valid until Close.
func (c *Conn) Process() *hypervisor.Process { return c.process }

// Done is closed when the connection has broken.
func (c *Conn) Done() <-chan struct{} { return c.relay.done() }

// Err says why the connection broke.
func (c *Conn) Err() error { return c.relay.err() }

// Close cuts the connection and frees it after its calls have returned.
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
	_ = c.process.Dir.Close()
}
