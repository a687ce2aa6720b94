// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain

import (
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// configureSerialConsole adds the first serial port. It ends in a pseudo-terminal, which libvirt's console
// stream opens, and QEMU copies what the guest writes into the launcher's pipe, whether or not one is open.
func configureSerialConsole(vmi *v1.VirtualMachineInstance, _ Facts, domain *libvirtxml.Domain) error {
	devices := vmi.Spec.Domain.Devices
	if !enabled(devices.AutoattachSerialConsole) {
		return nil
	}
	var port uint
	var log *libvirtxml.DomainChardevLog
	if enabled(devices.LogSerialConsole) {
		log = &libvirtxml.DomainChardevLog{File: launcherpod.ConsoleFIFO, Append: "on"}
	}
	domain.Devices.Serials = []libvirtxml.DomainSerial{{
		Source: &libvirtxml.DomainChardevSource{Pty: &libvirtxml.DomainChardevSourcePty{}},
		Target: &libvirtxml.DomainSerialTarget{Port: &port},
		Log:    log,
	}}
	domain.Devices.Consoles = []libvirtxml.DomainConsole{{
		Source: &libvirtxml.DomainChardevSource{Pty: &libvirtxml.DomainChardevSourcePty{}},
		Target: &libvirtxml.DomainConsoleTarget{Type: "serial", Port: &port},
	}}
	return nil
}
