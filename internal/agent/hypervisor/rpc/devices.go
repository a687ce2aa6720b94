// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"

	"golang.org/x/sys/unix"
	"libvirt.org/go/libvirt"
	"libvirt.org/go/libvirtxml"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/domain"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/limits"
)

// ChangeDisk carries out an operation on a running guest. It returns before the guest has released a disk that is
// detached, which an event reports. The stored definition does not change: it is never started again, and a guest that
// was migrated has none.
func (c *Conn) ChangeDisk(ctx context.Context, name string, o domain.Operation) error {
	text, err := o.Disk.Marshal()
	if err != nil {
		return fmt.Errorf("write the disk's XML: %w", err)
	}
	return c.onDomain(ctx, name, fmt.Sprintf("%s disk %s", o.Action, o.Name), func(d *libvirt.Domain) error {
		switch o.Action {
		case domain.Attach:
			return d.AttachDeviceFlags(text, libvirt.DOMAIN_DEVICE_MODIFY_LIVE)
		case domain.Detach:
			return d.DetachDeviceAlias(o.Disk.Alias.Name, libvirt.DOMAIN_DEVICE_MODIFY_LIVE)
		default:
			return d.UpdateDeviceFlags(text, libvirt.DOMAIN_DEVICE_MODIFY_LIVE)
		}
	})
}

// UpdateInterface changes an interface of a running domain, which libvirt finds by its alias and its addresses. libvirt
// refuses changes that a guest cannot follow while it runs. The stored definition is left: it is never started again,
// and a guest that was migrated has none.
func (c *Conn) UpdateInterface(ctx context.Context, name string, nic *libvirtxml.DomainInterface) error {
	text, err := nic.Marshal()
	if err != nil {
		return fmt.Errorf("write the interface's XML: %w", err)
	}
	return c.call(ctx, queryTimeout, "update an interface", func(l *libvirt.Connect) error {
		return withDomain(l, name, func(d *libvirt.Domain) error {
			return d.UpdateDeviceFlags(text, libvirt.DOMAIN_DEVICE_MODIFY_LIVE)
		})
	})
}

// AttachInterface plugs an interface into a running guest. The stored definition is left, as for UpdateInterface.
func (c *Conn) AttachInterface(ctx context.Context, name string, nic *libvirtxml.DomainInterface) error {
	text, err := nic.Marshal()
	if err != nil {
		return fmt.Errorf("write the interface's XML: %w", err)
	}
	return c.onDomain(ctx, name, "plug an interface", func(d *libvirt.Domain) error {
		return d.AttachDeviceFlags(text, libvirt.DOMAIN_DEVICE_MODIFY_LIVE)
	})
}

// DetachInterface requests of a running guest to release an interface. It returns before the guest has done so.
func (c *Conn) DetachInterface(ctx context.Context, name, alias string) error {
	return c.onDomain(ctx, name, "unplug an interface", func(d *libvirt.Domain) error {
		return d.DetachDeviceAlias(alias, libvirt.DOMAIN_DEVICE_MODIFY_LIVE)
	})
}

// SetVCPUs plugs vCPUs into a running guest, so that it has a number of them. It does not wait until the guest uses
// them.
func (c *Conn) SetVCPUs(ctx context.Context, domain string, count uint) error {
	return c.onDomain(ctx, domain, fmt.Sprintf("give the guest %d vCPUs", count), func(d *libvirt.Domain) error {
		return d.SetVcpusFlags(count, libvirt.DOMAIN_VCPU_LIVE)
	})
}

// AttachMemory plugs a memory device into a running guest, which takes memory from it as it can.
func (c *Conn) AttachMemory(ctx context.Context, domain string, device *libvirtxml.DomainMemorydev) error {
	return c.onMemory(ctx, domain, device, (*libvirt.Domain).AttachDeviceFlags)
}

// UpdateMemory changes how much memory a running guest is to take from its memory device.
func (c *Conn) UpdateMemory(ctx context.Context, domain string, device *libvirtxml.DomainMemorydev) error {
	return c.onMemory(ctx, domain, device, (*libvirt.Domain).UpdateDeviceFlags)
}

func (c *Conn) onMemory(
	ctx context.Context, domain string, device *libvirtxml.DomainMemorydev,
	do func(*libvirt.Domain, string, libvirt.DomainDeviceModifyFlags) error,
) error {
	text, err := device.Marshal()
	if err != nil {
		return fmt.Errorf("write the memory device's XML: %w", err)
	}
	return c.onDomain(ctx, domain, "change the guest's memory", func(d *libvirt.Domain) error {
		return do(d, text, libvirt.DOMAIN_DEVICE_MODIFY_LIVE)
	})
}

// ReadTracked calls read with the overlay of a disk, a file in launcherpod.TrackedDisksDir, and returns its error. The
// file may have any content, and read may still run when the context is done.
func (c *Conn) ReadTracked(ctx context.Context, name string, read func(io.ReaderAt) error) error {
	f, err := c.options.Broker.OpenFile(ctx, c.pod.UID, launcherpod.TrackedDisksDir, name)
	if err == nil {
		err = limits.Access(ctx, c.pod.UID, f, func() error { return read(f) })
	}
	if err != nil {
		return fmt.Errorf("read the overlay %s: %w", name, err)
	}
	return nil
}

// OpenUSB connects to one of the guest's USB ports for clients. QEMU uses the usbredir protocol and sends first. It
// serves one connection for a port at a time; another one waits without a response.
func (c *Conn) OpenUSB(ctx context.Context, port int) (net.Conn, error) {
	// The kernel reports the process that called listen, which is libvirtd: it passes the socket to QEMU. Both run in the
	// Pod.
	return c.openSocket(ctx, launcherpod.USBSocketName(port), fmt.Sprintf("open USB port %d", port), "port")
}

// openSocket connects to a socket on which QEMU listens. Errors begin with doing; if QEMU does not listen, the error
// says that no running guest has such a thing.
func (c *Conn) openSocket(ctx context.Context, name, doing, thing string) (net.Conn, error) {
	socket, err := c.options.Broker.OpenSocket(ctx, c.pod.UID, name, false)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ECONNREFUSED):
		// QEMU does not remove its sockets.
		return nil, fmt.Errorf("%s: %w with such a %s: %w", doing, hypervisor.ErrNotRunning, thing, err)
	case err != nil:
		return nil, fmt.Errorf("%s: %w: %w", doing, hypervisor.ErrUnreachable, err)
	}
	return socket, nil
}
