// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"context"
	"io"
	"net"

	"github.com/vireo-project/vireo/internal/handler/hypervisor"
)

// Machines gives the connections to the hypervisors of launcher Pods.
type Machines interface {
	// Open returns the connection to a Pod. An error wraps hypervisor.ErrConnecting or hypervisor.ErrUnreachable.
	Open(pod hypervisor.PodRef) (Machine, error)
}

// Machine is one launcher Pod's hypervisor.
type Machine interface {
	Terminals
	Power
}

// Terminals are what a person looks at. Errors that wrap hypervisor.ErrNoDomain or hypervisor.ErrNotRunning are about the
// guest's state.
type Terminals interface {
	// OpenConsole opens the guest's first serial port. Whoever has it loses it.
	OpenConsole(ctx context.Context, domain string) (io.ReadWriteCloser, error)
	// OpenGraphics makes a new client of the guest's VNC server. Others stay connected.
	OpenGraphics(ctx context.Context, domain string) (net.Conn, error)
}

// Power is the front panel.
type Power interface {
	// Pause stops the guest's CPUs. A guest that is paused stays so.
	Pause(ctx context.Context, domain string) error
	// Unpause lets the guest's CPUs go on.
	Unpause(ctx context.Context, domain string) error
	// Reset presses the reset button.
	Reset(ctx context.Context, domain string) error
	// Reboot asks the guest to start again.
	Reboot(ctx context.Context, domain string) error
}
