// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"context"
	"fmt"

	"libvirt.org/go/libvirt"
	"libvirt.org/go/libvirtxml"
)

// SetVCPUs plugs vCPUs into a running guest, so that it has a number of them. It does not wait until the guest uses them.
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
