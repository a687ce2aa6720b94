// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain_test

import (
	"testing"

	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
)

func pci(domain, bus, slot, function uint) *libvirtxml.DomainAddress {
	return &libvirtxml.DomainAddress{PCI: &libvirtxml.DomainAddressPCI{
		Domain: &domain, Bus: &bus, Slot: &slot, Function: &function,
	}}
}

func TestPCIAddress(t *testing.T) {
	at := func(address string) *guest {
		return makeGuest().masquerade().devices(func(d *v1.Devices) { d.Interfaces[0].PciAddress = address })
	}
	expectEqual(t, at("0000:0a:1f.7").build(t).Devices.Interfaces[0].Address, pci(0, 10, 31, 7))
	for _, address := range []string{"0000:0a:1f.8", "0000:0a:20.0", "0a:1f.7", "0000:0a:1f.7 ", "x"} {
		t.Run(address, func(t *testing.T) {
			at(address).expectRefused(t, "spec.domain.devices.interfaces[0].pciAddress", "0000:01:00.0")
		})
	}
}
