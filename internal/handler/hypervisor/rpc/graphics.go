// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"context"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/libvirtrpc"
)

// OpenGraphics makes a new client of the guest's screen and returns its connection to QEMU's VNC server.
//
// Both ends are made here, and QEMU is given one. The other way round, which libvirt has too (virDomainOpenGraphicsFD),
// would bring a descriptor of the launcher's choice into the agent, where a read of it may hang or do what no socket does.
func (c *Conn) OpenGraphics(ctx context.Context, domain string) (net.Conn, error) {
	ours, theirs, err := socketPair()
	if err != nil {
		return nil, err
	}
	defer func() { _ = theirs.Close() }()
	err = c.within(ctx, openTimeout, domain, "open the screen", func(ctx context.Context, client *libvirtrpc.Client, d libvirtrpc.Domain) error {
		return client.OpenGraphics(ctx, d, theirs, libvirtrpc.GraphicsSkipAuth)
	})
	if err != nil {
		_ = ours.Close()
		return nil, err
	}
	return ours, nil
}

// socketPair is a connection with itself: one end to use, one to give away.
func socketPair() (net.Conn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make a pair of sockets: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "screen"), os.NewFile(uintptr(fds[1]), "screen")
	// The connection has a descriptor of its own.
	defer func() { _ = ours.Close() }()
	conn, err := net.FileConn(ours)
	if err != nil {
		_ = theirs.Close()
		return nil, nil, fmt.Errorf("make a pair of sockets: %w", err)
	}
	return conn, theirs, nil
}
