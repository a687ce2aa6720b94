// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain

import (
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// configureSysInfo sets what the guest reads from SMBIOS.
func configureSysInfo(vmi *v1.VirtualMachineInstance, facts Facts, domain *libvirtxml.Domain) error {
	serial := ""
	if firmware := vmi.Spec.Domain.Firmware; firmware != nil {
		serial = firmware.Serial
	}
	smbios := &libvirtxml.DomainSysInfoSMBIOS{System: &libvirtxml.DomainSysInfoSystem{Entry: entries(
		"manufacturer", facts.SMBIOS.Manufacturer,
		"product", facts.SMBIOS.Product,
		"version", facts.SMBIOS.Version,
		"serial", serial,
		"uuid", firmwareUUID(vmi),
		"sku", facts.SMBIOS.SKU,
		"family", facts.SMBIOS.Family,
	)}}
	if chassis := vmi.Spec.Domain.Chassis; chassis != nil {
		list := entries(
			"manufacturer", chassis.Manufacturer,
			"version", chassis.Version,
			"serial", chassis.Serial,
			"asset", chassis.Asset,
			"sku", chassis.Sku,
		)
		if len(list) > 0 {
			smbios.Chassis = &libvirtxml.DomainSysInfoChassis{Entry: list}
		}
	}
	domain.SysInfo = []libvirtxml.DomainSysInfo{{SMBIOS: smbios}}
	if domain.OS != nil {
		domain.OS.SMBios = &libvirtxml.DomainSMBios{Mode: "sysinfo"}
	}
	return nil
}

// entries makes SMBIOS entries of pairs of name and value, without the empty ones.
func entries(pairs ...string) []libvirtxml.DomainSysInfoEntry {
	var list []libvirtxml.DomainSysInfoEntry
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			list = append(list, libvirtxml.DomainSysInfoEntry{Name: pairs[i], Value: pairs[i+1]})
		}
	}
	return list
}
