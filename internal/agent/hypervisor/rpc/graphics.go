// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"context"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/libvirtwire"
)

// OpenGraphics connects a new client to QEMU's VNC server and returns the connection.
//
// The agent creates both ends of the connection and passes one to QEMU. With libvirt's alternative (virDomainOpenGraphicsFD) the
// launcher would choose the descriptor that the agent receives, and reading from it may block or have other effects than reading
// from a socket.
func (c *Conn) OpenGraphics(ctx context.Context, domain string) (net.Conn, error) {
	ours, theirs, err := socketPair()
	if err != nil {
		return nil, err
	}
	defer func() { _ = theirs.Close() }()
	err = c.within(ctx, openTimeout, domain, "open the screen", func(ctx context.Context, client *libvirtwire.Client, d libvirtwire.Domain) error {
		return client.OpenGraphics(ctx, d, theirs, libvirtwire.GraphicsSkipAuth)
	})
	if err != nil {
		_ = ours.Close()
		return nil, err
	}
	return ours, nil
}

// socketPair returns two connected sockets: one to use and one to pass to another process.
func socketPair() (net.Conn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("create a pair of sockets: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "screen"), os.NewFile(uintptr(fds[1]), "screen")
	// The connection has a descriptor of its own.
	defer func() { _ = ours.Close() }()
	conn, err := net.FileConn(ours)
	if err != nil {
		_ = theirs.Close()
		return nil, nil, fmt.Errorf("create a pair of sockets: %w", err)
	}
	return conn, theirs, nil
}
