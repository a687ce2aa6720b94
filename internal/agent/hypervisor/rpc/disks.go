// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"context"
	"fmt"

	"libvirt.org/go/libvirt"

	"github.com/vireo-project/vireo/internal/domain"
)

// ChangeDisk carries out an operation on a running guest. It returns before the guest has released a disk that is detached, which
// an event reports. The stored definition does not change: it is never started again, and a guest that was migrated has none.
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
