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
