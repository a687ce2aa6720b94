// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package portforward

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/vireo-project/vireo/internal/virtctl/subresources"
)

const (
	// maxDatagram is the largest datagram that is carried: more than networks do, and what servers take as one message.
	maxDatagram = 32 << 10
	// idleClient is after how long without a datagram a client of a UDP port is forgotten, as firewalls do.
	idleClient = 2 * time.Minute
	// maxClients bounds the clients of a UDP port, and waitingDatagrams what waits for a client's stream. UDP may lose the rest.
	maxClients, waitingDatagrams = 1024, 64
)

// udpClients are the senders that a UDP port has heard of: each has a stream of its own, so that answers find back.
type udpClients struct {
	mu      sync.Mutex
	waiting map[string]chan []byte
}

func (f *forwarder) serveUDP(ctx context.Context, listener net.PacketConn, p port) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(ctx, func() { _ = listener.Close() })
	defer stop()
	var serving sync.WaitGroup
	defer serving.Wait()
	defer cancel()
	clients := &udpClients{waiting: map[string]chan []byte{}}
	buffer := make([]byte, maxDatagram+1)
	for {
		n, from, err := listener.ReadFrom(buffer)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			f.failed(p, err)
			continue
		}
		if n > maxDatagram {
			f.failed(p, fmt.Errorf("a datagram of more than %d bytes was dropped", maxDatagram))
			continue
		}
		queue, isNew := clients.queue(from.String())
		if queue == nil {
			continue
		}
		select {
		case queue <- append([]byte(nil), buffer[:n]...):
		default:
		}
		if isNew {
			serving.Go(func() {
				defer clients.forget(from.String())
				f.failed(p, f.serveClient(ctx, listener, from, queue, p))
			})
		}
	}
}

// queue is where a client's datagrams wait; nil if there are too many clients.
func (c *udpClients) queue(client string) (queue chan []byte, isNew bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if queue = c.waiting[client]; queue != nil {
		return queue, false
	}
	if len(c.waiting) >= maxClients {
		return nil, false
	}
	queue = make(chan []byte, waitingDatagrams)
	c.waiting[client] = queue
	return queue, true
}

func (c *udpClients) forget(client string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.waiting, client)
}

// serveClient carries one client's datagrams until it has been quiet for a while.
func (f *forwarder) serveClient(ctx context.Context, listener net.PacketConn, client net.Addr, queue <-chan []byte, p port) error {
	stream, err := f.dial.Dial(ctx, udp, p.remote)
	if err != nil {
		return err
	}
	defer func() { _ = stream.Close() }()
	answered := make(chan struct{}, 1)
	ended := make(chan error, 1)
	go func() { ended <- answer(stream, listener, client, answered) }()
	idle := time.NewTimer(idleClient)
	defer idle.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-idle.C:
			return nil
		case err := <-ended:
			return err
		case <-answered:
			idle.Reset(idleClient)
		case datagram := <-queue:
			idle.Reset(idleClient)
			if _, err := stream.Write(datagram); err != nil {
				return err
			}
		}
	}
}

// answer sends what the guest says to the client. A message is a datagram.
func answer(stream *subresources.Stream, listener net.PacketConn, client net.Addr, answered chan<- struct{}) error {
	for {
		datagram, err := stream.Message(maxDatagram)
		if err != nil {
			return err
		}
		select {
		case answered <- struct{}{}:
		default:
		}
		if _, err := listener.WriteTo(datagram, client); err != nil {
			return err
		}
	}
}
