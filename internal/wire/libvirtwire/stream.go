// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package libvirtwire

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"
)

// maxPiece is the size in which streams are sent and read. It is far below libvirt's limit
// (VIR_NET_MESSAGE_LEGACY_PAYLOAD_MAX), so that little data is in memory.
const maxPiece = 32 << 10

// Flags of OpenConsole (virDomainConsoleFlags).
const (
	// ConsoleForce disconnects a client that has the console open.
	ConsoleForce = 1
)

// GraphicsSkipAuth connects a client of the screen without a password (virDomainOpenGraphicsFlags), because virt-api
// has authorized it.
const GraphicsSkipAuth = 1

// maxEarly is the limit for stream data before the response to the call that opens the stream, in bytes. libvirtd
// responds in one thread and reads the console in another one, which sends what fits into a message
// (VIR_NET_MESSAGE_LEGACY_PAYLOAD_MAX) at a time.
const maxEarly = 256 << 10

// Stream is a stream of bytes that belongs to a call. While it is not read, its client reads nothing at all, so the
// daemon stops sending. A client can therefore have one stream only. One goroutine may read while another one writes.
type Stream struct {
	client *Client
	proc   int32
	serial uint32
	pieces chan piece
	// failed is closed if the call that opens it failed.
	failed chan struct{}
	// rest and err belong to the client's reader until the response to the call, and to the stream's reader afterwards.
	rest []byte
	err  error
}

// piece is the data of a message, or the error that ends the stream.
type piece struct {
	data []byte
	err  error
}

// OpenConsole opens a character device of a domain, its first console if it is not named.
func (c *Client) OpenConsole(ctx context.Context, domain Domain, device string, flags uint32) (*Stream, error) {
	var args encoder
	args.domain(domain)
	args.optionalStr(device)
	args.u32(flags)
	stream, _, err := c.openStream(ctx, procDomainOpenConsole, args.buf)
	return stream, err
}

// Screenshot returns an image of a domain's first screen and its MIME type.
func (c *Client) Screenshot(ctx context.Context, domain Domain) (*Stream, string, error) {
	var args encoder
	args.domain(domain)
	args.u32(0) // the first screen
	args.u32(0)
	stream, body, err := c.openStream(ctx, procDomainScreenshot, args.buf)
	if err != nil {
		return nil, "", err
	}
	d := decoder{buf: body}
	return stream, d.optionalStr(), d.err
}

// OpenGraphics connects a socket to a domain's first screen. The caller keeps its other end.
func (c *Client) OpenGraphics(ctx context.Context, domain Domain, socket *os.File, flags uint32) error {
	var args encoder
	args.domain(domain)
	args.u32(0) // the first graphics device
	args.u32(flags)
	_, err := c.exchange(ctx, request{program: programRemote, proc: procDomainOpenGraphics, args: args.buf, file: socket})
	return err
}

func (c *Client) openStream(ctx context.Context, proc int32, args []byte) (*Stream, []byte, error) {
	s := &Stream{client: c, proc: proc, pieces: make(chan piece), failed: make(chan struct{})}
	body, err := c.exchange(ctx, request{program: programRemote, proc: proc, args: args, stream: s})
	if err != nil {
		// The daemon may still send data on the stream, which is dropped.
		c.mu.Lock()
		delete(c.streams, s.serial)
		c.mu.Unlock()
		close(s.failed)
		return nil, nil, err
	}
	return s, body, nil
}

// Read waits for a piece of the stream. It ends with io.EOF.
func (s *Stream) Read(p []byte) (int, error) {
	for len(s.rest) == 0 {
		if s.err != nil {
			return 0, s.err
		}
		select {
		case next := <-s.pieces:
			s.rest, s.err = next.data, next.err
		case <-s.client.done:
			s.err = s.client.failure()
		}
	}
	n := copy(p, s.rest)
	s.rest = s.rest[n:]
	return n, nil
}

// Write sends to the stream. It blocks while the daemon does not read; Close ends that.
func (s *Stream) Write(p []byte) (int, error) {
	sent := 0
	for sent < len(p) {
		n := min(len(p)-sent, maxPiece)
		if err := s.client.sendPiece(s, p[sent:sent+n]); err != nil {
			return sent, err
		}
		sent += n
	}
	return sent, nil
}

// Close ends the stream and the connection that it was opened on.
func (s *Stream) Close() error {
	s.client.Close()
	return nil
}

func (c *Client) sendPiece(s *Stream, data []byte) error {
	c.write.Lock()
	defer c.write.Unlock()
	// The call that opened the stream had a deadline, the stream has none.
	err := c.conn.SetWriteDeadline(time.Time{})
	if err == nil {
		_, err = c.conn.Write(message(header{programRemote, s.proc, typeStream, s.serial, statusContinue}, data))
	}
	if err != nil {
		c.Close()
		return fmt.Errorf("send to libvirtd: %w", err)
	}
	return nil
}

// deliverStream passes a piece to the stream's reader and blocks until it is read. Pieces that arrive before the
// response to the call that opens the stream are stored, up to maxEarly.
func (c *Client) deliverStream(serial, status uint32, body []byte) error {
	c.mu.Lock()
	s := c.streams[serial]
	_, early := c.waiting[serial]
	c.mu.Unlock()
	if s == nil {
		return nil
	}
	next := piece{data: body}
	switch {
	case status == statusContinue && len(body) > 0:
	case status == statusContinue, status == statusOK:
		next = piece{err: io.EOF}
	default:
		next = piece{err: decodeError(body)}
	}
	if early {
		return s.keep(next)
	}
	select {
	case s.pieces <- next:
	case <-s.failed:
	case <-c.closing:
	}
	return nil
}

// keep stores a piece that arrived before the response to the call that opens the stream.
func (s *Stream) keep(next piece) error {
	if len(s.rest)+len(next.data) > maxEarly {
		return fmt.Errorf("more than %d bytes of a stream arrived before the response to the call that opens it", maxEarly)
	}
	s.rest, s.err = append(s.rest, next.data...), next.err
	return nil
}
