// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

const (
	// pointerTimeout bounds the exchange with the VNC server.
	pointerTimeout = 5 * time.Second
	// unblankTime is how long a guest has to unblank its screen.
	unblankTime = 500 * time.Millisecond
)

// movePointer moves the pointer a little, so that a guest unblanks its screen. It connects to the VNC server, which must have no
// other client: QEMU disconnects clients that do not share.
func movePointer(ctx context.Context, v *runningVMI) error {
	screen, err := v.conn.OpenGraphics(ctx, v.domain)
	if err != nil {
		return err
	}
	defer func() { _ = screen.Close() }()
	if err := screen.SetDeadline(time.Now().Add(pointerTimeout)); err != nil {
		return err
	}
	if err := nudge(screen); err != nil {
		return fmt.Errorf("move the pointer: %w", err)
	}
	select {
	case <-time.After(unblankTime):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// nudge sends two pointer events. It implements the part of the RFB protocol that they need. Source: RFC 6143, sections 7.1, 7.3
// and 7.5.5.
func nudge(screen net.Conn) error {
	const (
		version      = "RFB 003.008\n"
		securityNone = 1
		shared       = 1
		pointerEvent = 5
	)
	read := func(n int) ([]byte, error) {
		buffer := make([]byte, n)
		_, err := io.ReadFull(screen, buffer)
		return buffer, err
	}
	server, err := read(len(version))
	if err != nil {
		return err
	}
	if !bytes.HasPrefix(server, []byte("RFB ")) {
		return errors.New("the screen does not speak RFB")
	}
	if _, err := io.WriteString(screen, version); err != nil {
		return err
	}
	count, err := read(1)
	if err != nil {
		return err
	}
	kinds, err := read(int(count[0]))
	if err != nil {
		return err
	}
	if !bytes.Contains(kinds, []byte{securityNone}) {
		return errors.New("the screen requires a password")
	}
	if _, err := screen.Write([]byte{securityNone}); err != nil {
		return err
	}
	if result, err := read(4); err != nil || binary.BigEndian.Uint32(result) != 0 {
		return errors.Join(errors.New("the screen rejected the connection"), err)
	}
	if _, err := screen.Write([]byte{shared}); err != nil {
		return err
	}
	// The server's message starts with the size of the screen. The rest is not needed.
	size, err := read(4)
	if err != nil {
		return err
	}
	width, height := binary.BigEndian.Uint16(size), binary.BigEndian.Uint16(size[2:])
	for step := range uint16(2) {
		event := binary.BigEndian.AppendUint16([]byte{pointerEvent, 0}, width/2+step)
		if _, err := screen.Write(binary.BigEndian.AppendUint16(event, height/2+step)); err != nil {
			return err
		}
	}
	return nil
}
