// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"context"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// firstGuest is the first CID that a guest can have; those below mean the hypervisor and the node.
// Source: linux/vm_sockets.h.
const firstGuest = 3

// vsockAddr is a CID and a port.
type vsockAddr struct{ cid, port uint32 }

// Network returns the kind of the address.
func (vsockAddr) Network() string { return "vsock" }

// String returns the address as CID:port.
func (a vsockAddr) String() string { return fmt.Sprintf("%d:%d", a.cid, a.port) }

// vsockConn is a connection. Reads, writes and deadlines are those of the file, which Go's poller supports.
type vsockConn struct {
	*os.File
	remote vsockAddr
}

// LocalAddr returns an empty address, as no caller needs it.
func (*vsockConn) LocalAddr() net.Addr { return vsockAddr{} }

// RemoteAddr returns the guest's address.
func (c *vsockConn) RemoteAddr() net.Addr { return c.remote }

// dialVSOCK connects to a port of a CID.
func dialVSOCK(ctx context.Context, cid, port uint32) (net.Conn, error) {
	fd, err := unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("create a VSOCK socket: %w", err)
	}
	to := vsockAddr{cid, port}
	c := &vsockConn{File: os.NewFile(uintptr(fd), "vsock "+to.String()), remote: to}
	if err := connectVSOCK(ctx, c, fd); err != nil {
		_ = c.Close()
		return nil, fmt.Errorf("connect to VSOCK %s: %w", to, err)
	}
	return c, nil
}

func connectVSOCK(ctx context.Context, c *vsockConn, fd int) error {
	if deadline, ok := ctx.Deadline(); ok {
		if err := c.SetWriteDeadline(deadline); err != nil {
			return err
		}
	}
	stop := context.AfterFunc(ctx, func() { _ = c.SetWriteDeadline(time.Unix(1, 0)) })
	defer stop()
	switch err := unix.Connect(fd, &unix.SockaddrVM{CID: c.remote.cid, Port: c.remote.port}); err {
	case nil:
	case unix.EINPROGRESS:
		if err := waitConnected(c); err != nil {
			return err
		}
	default:
		return err
	}
	if !stop() {
		return context.Cause(ctx)
	}
	return c.SetWriteDeadline(time.Time{})
}

// waitConnected waits until the connection is established or has failed.
func waitConnected(c *vsockConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	waited := false
	var result error
	err = raw.Write(func(fd uintptr) bool {
		if !waited {
			// Write calls the function before it waits for the first time.
			waited = true
			return false
		}
		code, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
		switch {
		case err != nil:
			result = err
		case code != 0:
			result = unix.Errno(code)
		}
		return true
	})
	if err != nil {
		return err
	}
	return result
}
