// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain

import (
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// guestAgentChannel is the port that qemu-guest-agent opens in the guest.
const guestAgentChannel = "org.qemu.guest_agent.0"

// configureGuestAgentChannel always adds the guest agent's channel: whether an agent runs is the guest's
// affair and may change. libvirt places its socket.
func configureGuestAgentChannel(_ *v1.VirtualMachineInstance, _ Facts, domain *libvirtxml.Domain) error {
	domain.Devices.Channels = []libvirtxml.DomainChannel{{
		Source: &libvirtxml.DomainChardevSource{UNIX: &libvirtxml.DomainChardevSourceUNIX{}},
		Target: &libvirtxml.DomainChannelTarget{VirtIO: &libvirtxml.DomainChannelTargetVirtIO{Name: guestAgentChannel}},
	}}
	return nil
}
