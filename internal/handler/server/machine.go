// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"context"
	"io"
	"net"
	"time"

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
	USBPorts
	Screens
	Power
	Guests
	Freezers
}

// Terminals are what a person looks at. Errors that wrap hypervisor.ErrNoDomain or hypervisor.ErrNotRunning are about the
// guest's state.
type Terminals interface {
	// OpenConsole opens the guest's first serial port. Whoever has it loses it.
	OpenConsole(ctx context.Context, domain string) (io.ReadWriteCloser, error)
	// OpenGraphics makes a new client of the guest's VNC server. Others stay connected.
	OpenGraphics(ctx context.Context, domain string) (net.Conn, error)
}

// USBPorts are the guest's ports for devices of clients. An error that wraps hypervisor.ErrNotRunning says that the guest that
// runs has no such port.
type USBPorts interface {
	// OpenUSB plugs into a port that nobody is plugged into.
	OpenUSB(ctx context.Context, port int) (net.Conn, error)
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

// Screens are looked at once.
type Screens interface {
	// Screenshot gives an image of the guest's screen to a function, with its MIME type.
	Screenshot(ctx context.Context, domain string, take func(mime string, image io.Reader) error) error
}

// Guests asks the agent in the guest. Errors that wrap hypervisor.ErrGuestSilent or hypervisor.ErrGuestRefused are its.
type Guests interface {
	// GuestAgent asks for all that it tells.
	GuestAgent(ctx context.Context, domain string) (*hypervisor.GuestAgent, error)
	// GuestUsers asks who is logged in.
	GuestUsers(ctx context.Context, domain string) (hypervisor.List[hypervisor.GuestUser], error)
	// GuestFilesystems asks what is mounted.
	GuestFilesystems(ctx context.Context, domain string) (hypervisor.List[hypervisor.GuestFilesystem], error)
}

// Freezers stop and resume writes to a guest's file systems.
type Freezers interface {
	// Freeze freezes them. They are thawed after a while, or by Thaw alone if it is zero.
	Freeze(ctx context.Context, domain string, limit time.Duration) error
	// Thaw thaws them. A guest that is not frozen is left alone.
	Thaw(ctx context.Context, domain string) error
}
