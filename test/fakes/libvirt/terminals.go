// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package libvirt

import (
	"context"
	"fmt"
	"io"
	"net"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
)

// RFBBanner is what the screen sends first.
const RFBBanner = "RFB 003.008\n"

// USBHello is the format of what a USB port sends first.
const USBHello = "usbredir %d\n"

// Serial sets the program behind the guest's serial port, which gets the guest's end of each console that is opened.
// The default writes back what it reads.
func (l *Launcher) Serial(guest func(net.Conn)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.serial = guest
}

// OpenConsole opens the guest's serial port, and closes the console that is open.
func (l *Launcher) OpenConsole(ctx context.Context, name string) (io.ReadWriteCloser, error) {
	if err := l.running(ctx, "console", name); err != nil {
		return nil, err
	}
	ours, theirs := net.Pipe()
	l.mu.Lock()
	guest, before := l.serial, l.console
	l.console = theirs
	l.mu.Unlock()
	if before != nil {
		_ = before.Close()
	}
	if guest == nil {
		guest = echo
	}
	go guest(theirs)
	return ours, nil
}

// OpenGraphics connects a client to the guest's screen.
func (l *Launcher) OpenGraphics(ctx context.Context, name string) (net.Conn, error) {
	if err := l.running(ctx, "graphics", name); err != nil {
		return nil, err
	}
	ours, theirs := net.Pipe()
	go serveScreen(theirs)
	return ours, nil
}

// serveScreen serves a client that responds with the protocol's version, and writes back what any other one sends.
func serveScreen(client net.Conn) {
	defer func() { _ = client.Close() }()
	if _, err := io.WriteString(client, RFBBanner); err != nil {
		return
	}
	first := make([]byte, len(RFBBanner))
	n, err := client.Read(first)
	if err != nil {
		return
	}
	if string(first[:n]) != RFBBanner {
		if _, err := client.Write(first[:n]); err == nil {
			_, _ = io.Copy(client, client)
		}
		return
	}
	// One kind of security, none; then a result, and a screen of 800×600 whose other properties are omitted.
	for _, message := range []string{"\x01\x01", "\x00\x00\x00\x00", "\x03\x20\x02\x58"} {
		if _, err := io.WriteString(client, message); err != nil {
			return
		}
		if message[0] != 3 {
			if _, err := io.ReadFull(client, first[:1]); err != nil {
				return
			}
		}
	}
	_, _ = io.Copy(io.Discard, client)
}

// OpenUSB connects to a USB port of the guest, which sends its number and then writes back what it reads. As with QEMU,
// a second connection waits without a response.
func (l *Launcher) OpenUSB(ctx context.Context, port int) (net.Conn, error) {
	if err := l.enter(ctx, "usb"); err != nil {
		return nil, err
	}
	ours, theirs := net.Pipe()
	go func() {
		l.usb[port].Lock()
		defer l.usb[port].Unlock()
		if _, err := fmt.Fprintf(theirs, USBHello, port); err == nil {
			_, _ = io.Copy(theirs, theirs)
		}
		_ = theirs.Close()
	}()
	return ours, nil
}

func echo(conn net.Conn) {
	_, _ = io.Copy(conn, conn)
	_ = conn.Close()
}

// running is enter for calls that need a running domain.
func (l *Launcher) running(ctx context.Context, call, name string) error {
	if err := l.enter(ctx, call); err != nil {
		return err
	}
	switch found := l.Snapshot(); {
	case found == nil || found.XML.Name != name:
		return hypervisor.ErrNoDomain
	case !found.Active():
		return fmt.Errorf("%s: %w", call, hypervisor.ErrNotRunning)
	default:
		return nil
	}
}

// Pause pauses the guest.
func (l *Launcher) Pause(ctx context.Context, name string) error {
	if err := l.running(ctx, "pause", name); err != nil {
		return err
	}
	l.SetState(hypervisor.StatePaused, hypervisor.PausedByUser)
	return nil
}

// Unpause resumes the guest.
func (l *Launcher) Unpause(ctx context.Context, name string) error {
	if err := l.running(ctx, "unpause", name); err != nil {
		return err
	}
	l.SetState(hypervisor.StateRunning, "")
	return nil
}

// Reset counts the call, and lets a guest run that has stopped after an internal error.
func (l *Launcher) Reset(ctx context.Context, name string) error {
	if err := l.running(ctx, "reset", name); err != nil {
		return err
	}
	l.change(func() {
		l.resets++
		if l.domain.State == hypervisor.StatePaused && l.domain.Reason == hypervisor.PausedUnknown {
			l.domain.State, l.domain.Reason = hypervisor.StateRunning, ""
		}
	})
	return nil
}

// Reboot counts the call.
func (l *Launcher) Reboot(ctx context.Context, name string) error {
	if err := l.running(ctx, "reboot", name); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reboots++
	return nil
}

// Pressed returns how often Reset and Reboot were called.
func (l *Launcher) Pressed() (resets, reboots int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.resets, l.reboots
}
