// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain

import (
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// configureSerialConsole adds the first serial port. Its backend is a pseudo-terminal, which libvirt opens for a
// console stream. If the console is logged, QEMU also writes the guest's output to a FIFO of the launcher.
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
