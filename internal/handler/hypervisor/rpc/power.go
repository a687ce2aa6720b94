// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"context"
	"fmt"

	"libvirt.org/go/libvirt"

	"github.com/vireo-project/vireo/internal/handler/hypervisor"
)

// Pause stops the guest's CPUs. A guest that is paused stays so.
func (c *Conn) Pause(ctx context.Context, domain string) error {
	return c.onDomain(ctx, domain, "pause the guest", (*libvirt.Domain).Suspend)
}

// Unpause lets the guest's CPUs go on. A guest that runs goes on running.
func (c *Conn) Unpause(ctx context.Context, domain string) error {
	return c.onDomain(ctx, domain, "unpause the guest", func(d *libvirt.Domain) error {
		state, _, err := d.GetState()
		if err != nil || state == libvirt.DOMAIN_RUNNING {
			return err
		}
		return d.Resume()
	})
}

// Reset presses the guest's reset button.
func (c *Conn) Reset(ctx context.Context, domain string) error {
	return c.onDomain(ctx, domain, "reset the guest", func(d *libvirt.Domain) error { return d.Reset(0) })
}

// Reboot asks the guest to start again: its agent, and its power button if no agent does. It returns at once; whether
// the guest listens is seen later.
func (c *Conn) Reboot(ctx context.Context, domain string) error {
	return fromGuest(c.withAgent(ctx, domain, "reboot the guest", func(d *libvirt.Domain) error {
		return d.Reboot(libvirt.DOMAIN_REBOOT_GUEST_AGENT | libvirt.DOMAIN_REBOOT_ACPI_POWER_BTN)
	}))
}

// onDomain calls a function that libvirtd and QEMU answer without the guest.
func (c *Conn) onDomain(ctx context.Context, domain, what string, do func(*libvirt.Domain) error) error {
	return fromGuest(c.call(ctx, queryTimeout, what, func(l *libvirt.Connect) error { return withDomain(l, domain, do) }))
}

// fromGuest names the answers that are about the guest.
func fromGuest(err error) error {
	switch {
	case isCode(err, libvirt.ERR_OPERATION_INVALID):
		return fmt.Errorf("%w: %w", hypervisor.ErrNotRunning, err)
	case isCode(err, libvirt.ERR_AGENT_UNRESPONSIVE), isCode(err, libvirt.ERR_AGENT_COMMAND_TIMEOUT):
		return fmt.Errorf("%w: %w", hypervisor.ErrGuestSilent, err)
	default:
		return err
	}
}
