// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"context"
	"net"

	"github.com/vireo-project/vireo/internal/handler/hypervisor"
)

// Tunnel connects to the libvirtd of a Pod, which is checked to be the Pod's, for somebody else to talk to it. The connection is
// the caller's, and what goes over it is the caller's to bound.
func (m *Manager) Tunnel(_ context.Context, pod hypervisor.PodRef) (net.Conn, error) {
	launcher, process, err := dialLauncher(m.options, pod.UID)
	if err != nil {
		return nil, err
	}
	_ = process.Dir.Close()
	return launcher, nil
}
