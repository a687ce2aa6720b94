// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"context"
	"io"
	"net"
	"time"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
)

// Connections are the agent's connections to launchers.
type Connections interface {
	// Open returns the connection to a Pod. While it is being made, Open waits for it until the context ends. An error wraps
	// hypervisor.ErrConnecting or hypervisor.ErrUnreachable.
	Open(ctx context.Context, pod hypervisor.PodRef) (Connection, error)
}

// Connection is the connection to one launcher Pod's libvirtd.
type Connection interface {
	Terminals
	USBPorts
	Screens
	Power
	Guests
	Freezers
}

// Terminals opens consoles and screens. Errors that wrap hypervisor.ErrNoDomain or hypervisor.ErrNotRunning are about the guest's
// state.
type Terminals interface {
	// OpenConsole opens the guest's first serial port. An earlier stream of it ends.
	OpenConsole(ctx context.Context, domain string) (io.ReadWriteCloser, error)
	// OpenGraphics opens a new connection to the guest's VNC server. Other connections stay open.
	OpenGraphics(ctx context.Context, domain string) (net.Conn, error)
}

// USBPorts opens the guest's ports for USB devices of clients. An error wraps hypervisor.ErrNotRunning if the guest runs without
// them.
type USBPorts interface {
	// OpenUSB connects to a port. It must be free.
	OpenUSB(ctx context.Context, port int) (net.Conn, error)
}

// Power controls the guest's power state.
type Power interface {
	// Pause stops the guest's CPUs. It does nothing if the guest is paused.
	Pause(ctx context.Context, domain string) error
	// Unpause resumes the guest's CPUs.
	Unpause(ctx context.Context, domain string) error
	// Reset presses the reset button.
	Reset(ctx context.Context, domain string) error
	// Reboot requests a reboot from the guest.
	Reboot(ctx context.Context, domain string) error
}

// Screens takes screenshots.
type Screens interface {
	// Screenshot calls take with an image of the guest's screen and its MIME type.
	Screenshot(ctx context.Context, domain string, take func(mime string, image io.Reader) error) error
}

// Guests queries the guest agent. Its errors wrap hypervisor.ErrGuestSilent or hypervisor.ErrGuestRefused.
type Guests interface {
	// GuestAgent returns everything that the guest agent reports.
	GuestAgent(ctx context.Context, domain string) (*hypervisor.GuestAgent, error)
	// GuestUsers returns the users who are logged in.
	GuestUsers(ctx context.Context, domain string) (hypervisor.List[hypervisor.GuestUser], error)
	// GuestFilesystems returns the mounted file systems.
	GuestFilesystems(ctx context.Context, domain string) (hypervisor.List[hypervisor.GuestFilesystem], error)
	// Usage returns what the guest agent last reported about the use of the guest, or nil.
	Usage() *hypervisor.GuestUsage
}

// Freezers stops and resumes writes to a guest's file systems.
type Freezers interface {
	// Freeze freezes the file systems for at most limit. Zero means until Thaw.
	Freeze(ctx context.Context, domain string, limit time.Duration) error
	// Thaw thaws the file systems. It does nothing if the guest is not frozen.
	Thaw(ctx context.Context, domain string) error
}
