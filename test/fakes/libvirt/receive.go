// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package libvirt

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"

	"libvirt.org/go/libvirtxml"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
)

// Two fake launchers exchange messages with the frames and procedures of libvirt's protocol, so that an agent between
// them can check them, and with text as content. Source: libvirt src/rpc/virnetprotocol.x and
// src/remote/remote_protocol.x.
const (
	program     = 0x20008086
	procOpen    = 1
	procPrepare = 303
	procFinish  = 306

	kindCall, kindReply = 0, 1
	headerBytes         = 28
	maxFrame            = 4 << 20

	// canceled is the body of a finish request that ends the target's guest instead of completing it.
	canceled = "canceled"
)

// refusedError is an error that the target returned.
type refusedError struct{ message string }

func (e *refusedError) Error() string { return e.message }

type frame struct {
	proc, kind, status uint32
	body               string
}

func (f frame) write(to io.Writer) error {
	out := make([]byte, 0, headerBytes+len(f.body))
	for _, word := range []uint32{uint32(headerBytes + len(f.body)), program, 1, f.proc, f.kind, 1, f.status} {
		out = binary.BigEndian.AppendUint32(out, word)
	}
	_, err := to.Write(append(out, f.body...))
	return err
}

func readFrame(from io.Reader) (frame, error) {
	var header [headerBytes]byte
	if _, err := io.ReadFull(from, header[:]); err != nil {
		return frame{}, err
	}
	word := func(i int) uint32 { return binary.BigEndian.Uint32(header[4*i:]) }
	size := word(0)
	if size < headerBytes || size > maxFrame {
		return frame{}, fmt.Errorf("a frame of %d bytes", size)
	}
	body := make([]byte, size-headerBytes)
	_, err := io.ReadFull(from, body)
	return frame{proc: word(3), kind: word(4), status: word(6), body: string(body)}, err
}

// caller is the source's end of the connection.
type caller struct{ conn net.Conn }

func (c *caller) close() { _ = c.conn.Close() }

func (c *caller) call(ctx context.Context, proc uint32, body string) error {
	stop := context.AfterFunc(ctx, c.close)
	defer stop()
	err := frame{proc: proc, kind: kindCall, body: body}.write(c.conn)
	var reply frame
	if err == nil {
		reply, err = readFrame(c.conn)
	}
	if err != nil {
		return fmt.Errorf("call the target: %w: %w", hypervisor.ErrUnreachable, err)
	}
	if reply.status != 0 {
		return &refusedError{message: reply.body}
	}
	return nil
}

// MigrationConn connects to the launcher as a migration's source does.
func (l *Launcher) MigrationConn() net.Conn {
	client, server := net.Pipe()
	go l.receive(server)
	return client
}

// receive receives a guest. A guest that is not complete when the connection ends is ended.
func (l *Launcher) receive(conn net.Conn) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	defer func() { _ = conn.Close() }()
	defer l.change(func() {
		if l.moving.receiving {
			l.moving.receiving, l.domain = false, nil
		}
	})
	for {
		request, err := readFrame(conn)
		if err != nil {
			return
		}
		lost, err := l.handle(ctx, request)
		if lost {
			return
		}
		reply := frame{proc: request.proc, kind: kindReply}
		if err != nil {
			reply.status, reply.body = 1, err.Error()
		}
		if reply.write(conn) != nil {
			return
		}
	}
}

// handle handles a request of the source. Lost means that the response is to be lost.
func (l *Launcher) handle(ctx context.Context, request frame) (lost bool, err error) {
	switch request.proc {
	case procPrepare:
		return false, l.prepare(ctx, request.body)
	case procFinish:
		err := l.enter(ctx, "finish")
		if request.body == canceled {
			err = context.Canceled
		}
		if err != nil {
			l.change(func() { l.moving.receiving, l.domain = false, nil })
			return false, err
		}
		l.change(func() {
			if !l.moving.receiving {
				err = hypervisor.ErrNoDomain
				return
			}
			l.moving.receiving = false
			l.domain.State, l.domain.Reason = hypervisor.StatePaused, hypervisor.PausedByUser
		})
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.respond("finish") != nil, err
	case procOpen:
		return false, nil
	default:
		return false, fmt.Errorf("procedure %d", request.proc)
	}
}

func (l *Launcher) prepare(ctx context.Context, text string) error {
	if err := l.enter(ctx, "prepare"); err != nil {
		return err
	}
	definition := &libvirtxml.Domain{}
	if err := definition.Unmarshal(text); err != nil {
		return err
	}
	var err error
	l.change(func() {
		if l.domain.Active() {
			err = hypervisor.ErrNotRunning
			return
		}
		l.moving.receiving = true
		l.domain = &hypervisor.Domain{State: hypervisor.StatePaused, Reason: hypervisor.PausedByLibvirt, XML: definition}
	})
	return err
}
