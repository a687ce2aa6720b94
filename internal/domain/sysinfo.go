// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain

import (
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// configureSysInfo sets the guest's SMBIOS fields.
func configureSysInfo(vmi *v1.VirtualMachineInstance, facts Facts, domain *libvirtxml.Domain) error {
	serial := ""
	if firmware := vmi.Spec.Domain.Firmware; firmware != nil {
		serial = firmware.Serial
	}
	smbios := &libvirtxml.DomainSysInfoSMBIOS{System: &libvirtxml.DomainSysInfoSystem{Entry: entries(
		[2]string{"manufacturer", facts.SMBIOS.Manufacturer},
		[2]string{"product", facts.SMBIOS.Product},
		[2]string{"version", facts.SMBIOS.Version},
		[2]string{"serial", serial},
		[2]string{"uuid", firmwareUUID(vmi)},
		[2]string{"sku", facts.SMBIOS.SKU},
		[2]string{"family", facts.SMBIOS.Family},
	)}}
	if chassis := vmi.Spec.Domain.Chassis; chassis != nil {
		list := entries(
			[2]string{"manufacturer", chassis.Manufacturer},
			[2]string{"version", chassis.Version},
			[2]string{"serial", chassis.Serial},
			[2]string{"asset", chassis.Asset},
			[2]string{"sku", chassis.Sku},
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

// entries returns SMBIOS entries for pairs of name and value. It omits empty values.
func entries(pairs ...[2]string) []libvirtxml.DomainSysInfoEntry {
	var list []libvirtxml.DomainSysInfoEntry
	for _, pair := range pairs {
		if pair[1] != "" {
			list = append(list, libvirtxml.DomainSysInfoEntry{Name: pair[0], Value: pair[1]})
		}
	}
	return list
}
