// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"context"
	"net"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
)

// Tunnel connects to the libvirtd of a Pod for another agent, after checking that it is the Pod's. The caller closes the
// connection, and limits what is sent over it.
func (m *Manager) Tunnel(ctx context.Context, pod hypervisor.PodRef) (net.Conn, error) {
	launcher, err := dialLauncher(ctx, m.options, pod.UID, false)
	if err != nil {
		return nil, err
	}
	return launcher, nil
}
