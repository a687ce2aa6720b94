// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"context"
	"fmt"

	"libvirt.org/go/libvirt"
	"libvirt.org/go/libvirtxml"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/domain"
)

// withDomain runs fn with the domain of a name, or returns ErrNoDomain.
func withDomain(l *libvirt.Connect, name string, fn func(*libvirt.Domain) error) error {
	domain, err := l.LookupDomainByName(name)
	if isCode(err, libvirt.ERR_NO_DOMAIN) {
		return hypervisor.ErrNoDomain
	}
	if err != nil {
		return err
	}
	defer func() { _ = domain.Free() }()
	err = fn(domain)
	if isCode(err, libvirt.ERR_NO_DOMAIN) {
		// It was removed in between.
		return hypervisor.ErrNoDomain
	}
	return err
}

// Domain returns the domain of a name, or hypervisor.ErrNoDomain.
func (c *Conn) Domain(ctx context.Context, name string) (*hypervisor.Domain, error) {
	ctx, end := c.startConversation(ctx)
	defer end()
	var found *hypervisor.Domain
	var text string
	err := c.call(ctx, queryTimeout, "read the domain", func(l *libvirt.Connect) error {
		return withDomain(l, name, func(d *libvirt.Domain) error {
			state, reason, err := d.GetState()
			if err != nil {
				return err
			}
			if text, err = c.describe(ctx, d, 0); err != nil {
				return err
			}
			found = &hypervisor.Domain{}
			found.State, found.Reason = stateOf(state, reason)
			return nil
		})
	})
	if err != nil {
		return nil, err
	}
	// This may wait for memory, which must not count towards the timeout of the call.
	if found.XML, err = readDomain(ctx, text); err != nil {
		return nil, err
	}
	if found.Plugged, err = hypervisor.ReadPlugged(ctx, text); err != nil {
		return nil, fmt.Errorf("parse the memory of the domain: %w", err)
	}
	return found, nil
}

// Define defines the domain and returns it with the addresses that libvirt chose.
func (c *Conn) Define(ctx context.Context, definition *libvirtxml.Domain) (*libvirtxml.Domain, error) {
	text, err := definition.Marshal()
	if err != nil {
		return nil, fmt.Errorf("write the domain's XML: %w", err)
	}
	ctx, end := c.startConversation(ctx)
	defer end()
	var described string
	err = c.call(ctx, actTimeout, "define the domain", func(l *libvirt.Connect) error {
		domain, err := l.DomainDefineXML(text)
		if err != nil {
			return err
		}
		defer func() { _ = domain.Free() }()
		described, err = c.describe(ctx, domain, libvirt.DOMAIN_XML_INACTIVE)
		return err
	})
	if err != nil {
		return nil, err
	}
	return readDomain(ctx, described)
}

// describe reads the XML of a domain, in the conversation of the context.
func (c *Conn) describe(ctx context.Context, d *libvirt.Domain, flags libvirt.DomainXMLFlags) (text string, err error) {
	err = c.large(ctx, func() error {
		text, err = d.GetXMLDesc(flags)
		return err
	})
	return text, err
}

func readDomain(ctx context.Context, text string) (*libvirtxml.Domain, error) {
	described := &libvirtxml.Domain{}
	if err := hypervisor.ReadXML(ctx, text, described); err != nil {
		return nil, fmt.Errorf("parse the XML of the domain: %w", err)
	}
	return described, nil
}

// Start defines and starts the domain. It does nothing if the domain runs.
func (c *Conn) Start(ctx context.Context, definition *libvirtxml.Domain, paused bool) error {
	text, err := definition.Marshal()
	if err != nil {
		return fmt.Errorf("write the domain's XML: %w", err)
	}
	return c.call(ctx, actTimeout, "start the domain", func(l *libvirt.Connect) error {
		domain, err := l.DomainDefineXML(text)
		if err != nil {
			return err
		}
		defer func() { _ = domain.Free() }()
		var flags libvirt.DomainCreateFlags
		if paused {
			flags |= libvirt.DOMAIN_START_PAUSED
		}
		err = domain.CreateWithFlags(flags)
		if isCode(err, libvirt.ERR_OPERATION_INVALID) {
			if active, activeErr := domain.IsActive(); activeErr == nil && active {
				return nil
			}
		}
		return err
	})
}

// DiskSizes returns the sizes of a running guest's disks in bytes, by the name of their target. It omits drives without
// a medium.
func (c *Conn) DiskSizes(ctx context.Context, name string) (map[string]uint64, error) {
	ctx, end := c.startConversation(ctx)
	defer end()
	sizes := map[string]uint64{}
	err := c.call(ctx, queryTimeout, "read the sizes of disks", func(l *libvirt.Connect) error {
		return withDomain(l, name, func(d *libvirt.Domain) error {
			text, err := c.describe(ctx, d, 0)
			if err != nil {
				return err
			}
			live, err := readDomain(ctx, text)
			if err != nil || live.Devices == nil {
				return err
			}
			for i := range live.Devices.Disks {
				disk := &live.Devices.Disks[i]
				if disk.Target == nil || !domain.HasMedium(disk) {
					continue
				}
				info, err := d.GetBlockInfo(disk.Target.Dev, 0)
				if err != nil {
					return err
				}
				sizes[disk.Target.Dev] = info.Capacity
			}
			return nil
		})
	})
	return sizes, err
}

// GrowDisk grows a running guest's disk, by the name of its target: to a number of bytes, or with 0 to the size of its
// block device. QEMU resizes the image that it has open, so no path is followed, and notifies the guest.
func (c *Conn) GrowDisk(ctx context.Context, name, target string, bytes uint64) error {
	return c.call(ctx, queryTimeout, "grow the disk "+target, func(l *libvirt.Connect) error {
		return withDomain(l, name, func(d *libvirt.Domain) error {
			flags := libvirt.DOMAIN_BLOCK_RESIZE_BYTES
			if bytes == 0 {
				flags |= libvirt.DOMAIN_BLOCK_RESIZE_CAPACITY
			}
			return d.BlockResize(target, bytes, flags)
		})
	})
}

// DiskErrors returns the disks of a running domain that have failed, by the name of their target.
func (c *Conn) DiskErrors(ctx context.Context, name string) (map[string]hypervisor.DiskError, error) {
	failed := map[string]hypervisor.DiskError{}
	err := c.call(ctx, queryTimeout, "read the errors of disks", func(l *libvirt.Connect) error {
		return withDomain(l, name, func(d *libvirt.Domain) error {
			list, err := d.GetDiskErrors(0)
			for i := range list {
				switch list[i].Error {
				case libvirt.DOMAIN_DISK_ERROR_NONE:
				case libvirt.DOMAIN_DISK_ERROR_NO_SPACE:
					failed[list[i].Disk] = hypervisor.DiskErrorNoSpace
				default:
					failed[list[i].Disk] = hypervisor.DiskErrorOther
				}
			}
			return err
		})
	})
	return failed, err
}

// ResumeAfter resumes a guest that is paused for a reason, one of the Paused constants. It does nothing if the guest is
// paused for another one.
func (c *Conn) ResumeAfter(ctx context.Context, name, reason string) error {
	return c.call(ctx, queryTimeout, "resume the guest", func(l *libvirt.Connect) error {
		return withDomain(l, name, func(d *libvirt.Domain) error {
			state, why, err := d.GetState()
			if err != nil || state != libvirt.DOMAIN_PAUSED || pausedReason(libvirt.DomainPausedReason(why)) != reason {
				return err
			}
			return d.Resume()
		})
	})
}

// Shutdown presses the guest's ACPI power button and returns at once. As in KubeVirt it does not use the guest agent: a
// guest that ignores the button is destroyed after its grace period.
func (c *Conn) Shutdown(ctx context.Context, name string) error {
	return c.call(ctx, queryTimeout, "shut the domain down", func(l *libvirt.Connect) error {
		return withDomain(l, name, func(d *libvirt.Domain) error {
			return d.ShutdownFlags(libvirt.DOMAIN_SHUTDOWN_ACPI_POWER_BTN)
		})
	})
}

// Destroy ends the domain's QEMU: with SIGTERM, which lets it flush its disks, then with SIGKILL.
func (c *Conn) Destroy(ctx context.Context, name string) error {
	return c.call(ctx, actTimeout, "destroy the domain", func(l *libvirt.Connect) error {
		return withDomain(l, name, func(d *libvirt.Domain) error { return d.DestroyFlags(libvirt.DOMAIN_DESTROY_DEFAULT) })
	})
}

// stateOf converts libvirt's state and its reason.
func stateOf(state libvirt.DomainState, reason int) (hypervisor.State, string) {
	switch state {
	case libvirt.DOMAIN_RUNNING:
		if libvirt.DomainRunningReason(reason) == libvirt.DOMAIN_RUNNING_POSTCOPY_FAILED {
			// Its CPUs wait for memory that never arrives.
			return hypervisor.StatePaused, hypervisor.PausedPostcopyFailed
		}
		return hypervisor.StateRunning, ""
	case libvirt.DOMAIN_PAUSED:
		return hypervisor.StatePaused, pausedReason(libvirt.DomainPausedReason(reason))
	case libvirt.DOMAIN_SHUTOFF:
		switch libvirt.DomainShutoffReason(reason) {
		case libvirt.DOMAIN_SHUTOFF_UNKNOWN:
			// It was defined and has not been started yet.
			return hypervisor.StateDefined, ""
		case libvirt.DOMAIN_SHUTOFF_FAILED:
			return hypervisor.StateDefined, "StartFailed"
		}
		return hypervisor.StateEnded, shutoffReasons[libvirt.DomainShutoffReason(reason)]
	case libvirt.DOMAIN_CRASHED:
		return hypervisor.StateEnded, "Crashed"
	case libvirt.DOMAIN_SHUTDOWN:
		return hypervisor.StateRunning, "ShuttingDown"
	default:
		return hypervisor.StateRunning, ""
	}
}

// pausedReason converts libvirt's reason. Only the reasons listed here as transient are: nothing ends a pause for a
// reason that a later libvirt adds.
func pausedReason(reason libvirt.DomainPausedReason) string {
	if known, ok := pausedReasons[reason]; ok {
		return known
	}
	return hypervisor.PausedUnknown
}

var pausedReasons = map[libvirt.DomainPausedReason]string{
	libvirt.DOMAIN_PAUSED_USER:            hypervisor.PausedByUser,
	libvirt.DOMAIN_PAUSED_IOERROR:         hypervisor.PausedIOError,
	libvirt.DOMAIN_PAUSED_WATCHDOG:        hypervisor.PausedWatchdog,
	libvirt.DOMAIN_PAUSED_CRASHED:         hypervisor.PausedCrashed,
	libvirt.DOMAIN_PAUSED_POSTCOPY_FAILED: hypervisor.PausedPostcopyFailed,
	libvirt.DOMAIN_PAUSED_API_ERROR:       hypervisor.PausedAPIError,

	libvirt.DOMAIN_PAUSED_STARTING_UP:   hypervisor.PausedByLibvirt,
	libvirt.DOMAIN_PAUSED_SAVE:          hypervisor.PausedByLibvirt,
	libvirt.DOMAIN_PAUSED_DUMP:          hypervisor.PausedByLibvirt,
	libvirt.DOMAIN_PAUSED_SNAPSHOT:      hypervisor.PausedByLibvirt,
	libvirt.DOMAIN_PAUSED_FROM_SNAPSHOT: hypervisor.PausedByLibvirt,
	libvirt.DOMAIN_PAUSED_MIGRATION:     hypervisor.PausedByLibvirt,
	libvirt.DOMAIN_PAUSED_POSTCOPY:      hypervisor.PausedByLibvirt,
	libvirt.DOMAIN_PAUSED_SHUTTING_DOWN: hypervisor.PausedByLibvirt,
}

var shutoffReasons = map[libvirt.DomainShutoffReason]string{
	libvirt.DOMAIN_SHUTOFF_SHUTDOWN:  "Shutdown",
	libvirt.DOMAIN_SHUTOFF_DESTROYED: "Destroyed",
	libvirt.DOMAIN_SHUTOFF_CRASHED:   "Crashed",
	libvirt.DOMAIN_SHUTOFF_MIGRATED:  "Migrated",
	libvirt.DOMAIN_SHUTOFF_SAVED:     "Saved",
}
