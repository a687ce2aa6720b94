// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"

	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// OpenUSB connects to one of the guest's USB ports for clients. QEMU uses the usbredir protocol and sends first. It serves one
// connection for a port at a time; another one waits without a response.
func (c *Conn) OpenUSB(ctx context.Context, port int) (net.Conn, error) {
	// The kernel reports the process that called listen, which is libvirtd: it passes the socket to QEMU. Both run in the Pod.
	socket, err := c.options.Broker.OpenSocket(ctx, c.pod.UID, launcherpod.USBSocketName(port), false)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ECONNREFUSED):
		// QEMU does not remove its sockets.
		return nil, fmt.Errorf("open USB port %d: %w with such a port: %w", port, hypervisor.ErrNotRunning, err)
	case err != nil:
		return nil, fmt.Errorf("open USB port %d: %w: %w", port, hypervisor.ErrUnreachable, err)
	}
	return socket, nil
}
