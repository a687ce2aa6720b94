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

	"github.com/vireo-project/vireo/internal/handler/hypervisor"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// OpenUSB plugs into one of the guest's USB ports for clients and returns the connection to QEMU, which speaks the protocol
// of usbredir and speaks first. QEMU takes one connection at a time for a port: who comes while there is one waits unheard.
func (c *Conn) OpenUSB(_ context.Context, port int) (net.Conn, error) {
	// The kernel tells who called listen, which is libvirtd: QEMU gets the socket from it. Both run in the Pod.
	socket, process, err := dialSocket(c.options, c.pod.UID, launcherpod.USBSocketName(port))
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ECONNREFUSED):
		// QEMU leaves its sockets behind.
		return nil, fmt.Errorf("open USB port %d: %w with such a port: %w", port, hypervisor.ErrNotRunning, err)
	case err != nil:
		return nil, fmt.Errorf("open USB port %d: %w: %w", port, hypervisor.ErrUnreachable, err)
	}
	_ = process.Dir.Close()
	return socket, nil
}
