// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package portforward

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/coder/websocket"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/vireo-project/vireo/internal/virtctl/cli"
	"github.com/vireo-project/vireo/internal/virtctl/subresources"
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

// failurePause is the pause after a failure to accept a connection or to read a datagram. Its cause may last: for
// example, the process may have no more file descriptors.
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
	_, _ = fmt.Fprintf(f.out, "Forwarding from %s to %s %s port %d (%s)\n", address, f.dial.Target.Kind(),
		f.dial.Target.Name, p.remote, p.protocol)
}

// report prints the error of one connection. The others continue.
func (f *forwarder) report(p port, err error) {
	if err = ignoreClosed(err); err == nil || errors.Is(err, context.Canceled) {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	_, _ = fmt.Fprintf(f.errOut, "error forwarding to %s port %d of %s: %s\n", p.protocol, p.remote, f.dial.Target.Name,
		cli.Plain(err.Error()))
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

// Dialer opens streams to a guest's ports.
type Dialer struct {
	API    *subresources.Client
	Target subresources.Object
	// VSOCK connects to the guest's VSOCK ports, PlainVSOCK without TLS.
	VSOCK, PlainVSOCK bool
}

// Dial opens a stream to a port.
func (d *Dialer) Dial(ctx context.Context, protocol string, number int) (*subresources.Stream, error) {
	if d.VSOCK {
		instance := d.Target
		instance.Resource = subresources.VirtualMachineInstances // VMs do not have this subresource.
		parameters := url.Values{"port": {strconv.Itoa(number)}, "tls": {strconv.FormatBool(!d.PlainVSOCK)}}
		return d.API.Stream(ctx, instance, []string{"vsock"}, parameters)
	}
	return d.API.Stream(ctx, d.Target, []string{"portforward", strconv.Itoa(number), protocol}, nil)
}

// stdio connects a port with the program's input and output.
func stdio(ctx context.Context, dial *Dialer, protocol string, number int, streams genericiooptions.IOStreams) error {
	stream, err := dial.Dial(ctx, protocol, number)
	if err != nil {
		return err
	}
	defer func() { _ = stream.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = stream.Close() })
	defer stop()
	return ignoreClosed(stream.Join(streams.In, streams.Out))
}

// ignoreClosed returns nil for the regular end of a connection.
func ignoreClosed(err error) error {
	var closed *subresources.ClosedError
	if errors.Is(err, net.ErrClosed) || errors.Is(err, io.EOF) || errors.As(err, &closed) &&
		closed.Code == websocket.StatusNormalClosure {
		return nil
	}
	return err
}

const (
	// maxDatagram is the size of the largest datagram that is forwarded. It is the limit of servers for one message,
	// and larger than what networks transport.
	maxDatagram = 32 << 10
	// idleTimeout is how long the stream of a client stays open without a datagram. The value is common in firewalls.
	idleTimeout = 2 * time.Minute
	// maxClients limits the clients of a UDP port, and queueLength the datagrams that wait for a client's stream.
	// Datagrams beyond these limits are dropped, which UDP permits.
	maxClients, queueLength = 1024, 64
)

// udpClients are the clients of a UDP port by their addresses. Each has its own queue, and its own stream, from which
// it gets its responses.
type udpClients struct {
	mu     sync.Mutex
	queues map[string]chan []byte
}

func (f *forwarder) serveUDP(ctx context.Context, listener net.PacketConn, p port) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(ctx, func() { _ = listener.Close() })
	defer stop()
	var serving sync.WaitGroup
	defer serving.Wait()
	defer cancel()
	clients := &udpClients{queues: map[string]chan []byte{}}
	buffer := make([]byte, maxDatagram+1)
	for {
		n, from, err := listener.ReadFrom(buffer)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			f.report(p, err)
			f.wait(ctx)
			continue
		}
		if n > maxDatagram {
			f.report(p, fmt.Errorf("a datagram of more than %d bytes was dropped", maxDatagram))
			continue
		}
		queue, isNew := clients.queue(from.String())
		if queue == nil {
			continue
		}
		select {
		case queue <- slices.Clone(buffer[:n]):
		default:
		}
		if isNew {
			serving.Go(func() {
				defer clients.remove(from.String())
				f.report(p, f.serveClient(ctx, listener, from, queue, p))
			})
		}
	}
}

// queue returns the queue of a client's datagrams; nil if there are too many clients.
func (c *udpClients) queue(client string) (queue chan []byte, isNew bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if queue = c.queues[client]; queue != nil {
		return queue, false
	}
	if len(c.queues) >= maxClients {
		return nil, false
	}
	queue = make(chan []byte, queueLength)
	c.queues[client] = queue
	return queue, true
}

func (c *udpClients) remove(client string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.queues, client)
}

// serveClient forwards one client's datagrams until none has been received for idleTimeout.
func (f *forwarder) serveClient(
	ctx context.Context, listener net.PacketConn, client net.Addr, queue <-chan []byte, p port,
) error {
	stream, err := f.dial.Dial(ctx, udp, p.remote)
	if err != nil {
		return err
	}
	defer func() { _ = stream.Close() }()
	received := make(chan struct{}, 1)
	ended := make(chan error, 1)
	go func() { ended <- forwardResponses(stream, listener, client, received) }()
	idle := time.NewTimer(idleTimeout)
	defer idle.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-idle.C:
			return nil
		case err := <-ended:
			return err
		case <-received:
			idle.Reset(idleTimeout)
		case datagram := <-queue:
			idle.Reset(idleTimeout)
			if _, err := stream.Write(datagram); err != nil {
				return err
			}
		}
	}
}

// forwardResponses sends the guest's datagrams, of which each is a message of the stream, to the client. It signals
// each of them on received.
func forwardResponses(
	stream *subresources.Stream, listener net.PacketConn, client net.Addr, received chan<- struct{},
) error {
	for {
		datagram, err := stream.Message(maxDatagram)
		if err != nil {
			return err
		}
		select {
		case received <- struct{}{}:
		default:
		}
		if _, err := listener.WriteTo(datagram, client); err != nil {
			return err
		}
	}
}
