// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"context"
	"fmt"

	"libvirt.org/go/libvirt"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/migration/protocol"
)

// Pause stops the guest's CPUs. It does nothing if the guest is paused.
func (c *Conn) Pause(ctx context.Context, domain string) error {
	return c.onDomain(ctx, domain, "pause the guest", (*libvirt.Domain).Suspend)
}

// Unpause resumes the guest's CPUs. It does nothing if the guest runs, and fails with ErrNotRunning while a migration has it paused: the
// other side may run it.
func (c *Conn) Unpause(ctx context.Context, domain string) error {
	return c.onDomain(ctx, domain, "unpause the guest", func(d *libvirt.Domain) error {
		state, reason, err := d.GetState()
		if err != nil || state == libvirt.DOMAIN_RUNNING {
			return err
		}
		if state == libvirt.DOMAIN_PAUSED && sourceState(state, reason) != protocol.SourceRunning {
			return fmt.Errorf("%w: a migration has paused it", hypervisor.ErrNotRunning)
		}
		return d.Resume()
	})
}

// Reset presses the guest's reset button. A guest that nobody has paused runs afterwards: QEMU resumes none that has stopped after an
// internal error or a crash until it is reset.
func (c *Conn) Reset(ctx context.Context, domain string) error {
	return c.onDomain(ctx, domain, "reset the guest", func(d *libvirt.Domain) error {
		state, reason, err := d.GetState()
		if err != nil {
			return err
		}
		if err := d.Reset(0); err != nil || state != libvirt.DOMAIN_PAUSED {
			return err
		}
		switch pausedReason(libvirt.DomainPausedReason(reason)) {
		case hypervisor.PausedUnknown, hypervisor.PausedCrashed, hypervisor.PausedWatchdog, hypervisor.PausedAPIError:
			return d.Resume()
		default:
			return nil
		}
	})
}

// Reboot requests a reboot from the guest agent, or by the power button if there is no agent. It does not wait for the
// reboot.
func (c *Conn) Reboot(ctx context.Context, domain string) error {
	return fromGuest(c.withAgent(ctx, domain, "reboot the guest", func(d *libvirt.Domain) error {
		return d.Reboot(libvirt.DOMAIN_REBOOT_GUEST_AGENT | libvirt.DOMAIN_REBOOT_ACPI_POWER_BTN)
	}))
}

// onDomain runs calls to which libvirtd and QEMU respond without the guest.
func (c *Conn) onDomain(ctx context.Context, domain, what string, do func(*libvirt.Domain) error) error {
	return fromGuest(c.call(ctx, queryTimeout, what, func(l *libvirt.Connect) error { return withDomain(l, domain, do) }))
}

// fromGuest wraps error responses about the guest with the errors of package hypervisor.
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
