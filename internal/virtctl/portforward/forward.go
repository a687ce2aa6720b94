// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package portforward

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/vireo-project/vireo/internal/virtctl/cli"
)

// forwarder listens on local ports and forwards their connections.
type forwarder struct {
	dial    *Dialer
	address *net.IPAddr
	// out receives the address of each port, errOut the errors of single connections.
	out, errOut io.Writer
	mu          sync.Mutex
	// wait pauses after a failure to accept or to read.
	wait func(context.Context)
}

// failurePause is the pause after a failure to accept a connection or to read a datagram. Its cause may last: for example, the process may
// have no more file descriptors.
const failurePause = 100 * time.Millisecond

func pause(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(failurePause):
	}
}

// run forwards until the context ends, which is not an error: users stop the command this way.
func (f *forwarder) run(ctx context.Context, ports []port) error {
	var opened []func()
	for _, p := range ports {
		serve, err := f.open(ctx, p)
		if err != nil {
			return fmt.Errorf("%s port %d cannot be opened: %w", p.protocol, p.local, err)
		}
		opened = append(opened, serve)
	}
	var serving sync.WaitGroup
	for _, serve := range opened {
		serving.Go(serve)
	}
	serving.Wait()
	return nil
}

// open listens on a port and returns the function that serves it.
func (f *forwarder) open(ctx context.Context, p port) (func(), error) {
	address := net.JoinHostPort(f.address.String(), fmt.Sprint(p.local))
	var config net.ListenConfig
	if p.protocol == udp {
		listener, err := config.ListenPacket(ctx, udp, address)
		if err != nil {
			return nil, err
		}
		f.announce(listener.LocalAddr(), p)
		return func() { f.serveUDP(ctx, listener, p) }, nil
	}
	listener, err := config.Listen(ctx, tcp, address)
	if err != nil {
		return nil, err
	}
	f.announce(listener.Addr(), p)
	return func() { f.serveTCP(ctx, listener, p) }, nil
}

func (f *forwarder) announce(address net.Addr, p port) {
	_, _ = fmt.Fprintf(f.out, "Forwarding from %s to %s %s port %d (%s)\n", address, f.dial.Target.Kind(), f.dial.Target.Name, p.remote, p.protocol)
}

// report prints the error of one connection. The others continue.
func (f *forwarder) report(p port, err error) {
	if err = ignoreClosed(err); err == nil || errors.Is(err, context.Canceled) {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	_, _ = fmt.Fprintf(f.errOut, "error forwarding to %s port %d of %s: %s\n", p.protocol, p.remote, f.dial.Target.Name, cli.Plain(err.Error()))
}

func (f *forwarder) serveTCP(ctx context.Context, listener net.Listener, p port) {
	stop := context.AfterFunc(ctx, func() { _ = listener.Close() })
	defer stop()
	var connections sync.WaitGroup
	defer connections.Wait()
	for {
		local, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			f.report(p, err)
			f.wait(ctx)
			continue
		}
		connections.Go(func() { f.report(p, f.connect(ctx, local, p)) })
	}
}

// connect connects an accepted connection with the guest's port.
func (f *forwarder) connect(ctx context.Context, local net.Conn, p port) error {
	defer func() { _ = local.Close() }()
	stream, err := f.dial.Dial(ctx, tcp, p.remote)
	if err != nil {
		return err
	}
	defer func() { _ = stream.Close() }()
	stop := context.AfterFunc(ctx, func() {
		_ = local.Close()
		_ = stream.Close()
	})
	defer stop()
	return stream.Join(local, local)
}
