// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain

import (
	"path"

	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// configureUSBRedirection adds USB ports to which clients redirect devices. Each has a socket on which QEMU accepts a
// connection of the agent, because libvirt has no call to open a redirected port.
func configureUSBRedirection(vmi *v1.VirtualMachineInstance, _ Facts, domain *libvirtxml.Domain) error {
	if vmi.Spec.Domain.Devices.ClientPassthrough == nil {
		return nil
	}
	for port := range launcherpod.USBPorts {
		domain.Devices.RedirDevs = append(domain.Devices.RedirDevs, libvirtxml.DomainRedirDev{
			Bus: string(v1.InputBusUSB),
			Source: &libvirtxml.DomainChardevSource{UNIX: &libvirtxml.DomainChardevSourceUNIX{
				Mode: "bind", Path: path.Join(launcherpod.SocketsDir, launcherpod.USBSocketName(port)),
			}},
		})
	}
	return nil
}
