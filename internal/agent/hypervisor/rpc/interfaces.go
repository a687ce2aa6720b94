// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"context"
	"fmt"

	"libvirt.org/go/libvirt"
	"libvirt.org/go/libvirtxml"
)

// UpdateInterface changes an interface of a running domain, which libvirt finds by its alias and its addresses. libvirt refuses
// changes that a guest cannot follow while it runs. The stored definition is left: it is never started again, and a guest that was
// migrated has none.
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
