// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package portforward

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/vireo-project/vireo/internal/virtctl/subresources"
)

const (
	// maxDatagram is the size of the largest datagram that is forwarded. It is the limit of servers for one message, and larger than what
	// networks transport.
	maxDatagram = 32 << 10
	// idleTimeout is how long the stream of a client stays open without a datagram. The value is common in firewalls.
	idleTimeout = 2 * time.Minute
	// maxClients limits the clients of a UDP port, and queueLength the datagrams that wait for a client's stream. Datagrams beyond these
	// limits are dropped, which UDP permits.
	maxClients, queueLength = 1024, 64
)

// udpClients are the clients of a UDP port by their addresses. Each has its own queue, and its own stream, from which it gets its
// responses.
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
func (f *forwarder) serveClient(ctx context.Context, listener net.PacketConn, client net.Addr, queue <-chan []byte, p port) error {
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

// forwardResponses sends the guest's datagrams, of which each is a message of the stream, to the client. It signals each of them on
// received.
func forwardResponses(stream *subresources.Stream, listener net.PacketConn, client net.Addr, received chan<- struct{}) error {
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
