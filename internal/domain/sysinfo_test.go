// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain_test

import (
	"testing"

	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/domain"
)

func TestSysInfo(t *testing.T) {
	got := makeGuest().
		on(func(f *domain.Facts) {
			f.SMBIOS = domain.SMBIOSFact{Manufacturer: "Maker", Product: "Thing", Version: "1", SKU: "2", Family: "Kind"}
		}).
		domainSpec(func(d *v1.DomainSpec) {
			d.Firmware.Serial = "s-1"
			d.Chassis = &v1.Chassis{Manufacturer: "Maker", Asset: "a-1"}
		}).build(t)
	expectEqual(t, got.SysInfo, []libvirtxml.DomainSysInfo{{SMBIOS: &libvirtxml.DomainSysInfoSMBIOS{
		System: &libvirtxml.DomainSysInfoSystem{Entry: []libvirtxml.DomainSysInfoEntry{
			{Name: "manufacturer", Value: "Maker"}, {Name: "product", Value: "Thing"}, {Name: "version", Value: "1"},
			{Name: "serial", Value: "s-1"}, {Name: "uuid", Value: testUUID}, {Name: "sku", Value: "2"}, {Name: "family", Value: "Kind"},
		}},
		Chassis: &libvirtxml.DomainSysInfoChassis{Entry: []libvirtxml.DomainSysInfoEntry{
			{Name: "manufacturer", Value: "Maker"}, {Name: "asset", Value: "a-1"},
		}},
	}}})
}

func TestSysInfoLeavesEmptyEntriesOut(t *testing.T) {
	got := makeGuest().
		on(func(f *domain.Facts) { f.SMBIOS = domain.SMBIOSFact{} }).
		domainSpec(func(d *v1.DomainSpec) { d.Chassis = &v1.Chassis{} }).build(t)
	expectEqual(t, got.SysInfo, []libvirtxml.DomainSysInfo{{SMBIOS: &libvirtxml.DomainSysInfoSMBIOS{
		System: &libvirtxml.DomainSysInfoSystem{Entry: []libvirtxml.DomainSysInfoEntry{{Name: "uuid", Value: testUUID}}},
	}}})
}
