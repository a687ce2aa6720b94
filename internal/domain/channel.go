// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain

import (
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// guestAgentChannel is the name of the virtio-serial port that qemu-guest-agent opens in the guest.
const guestAgentChannel = "org.qemu.guest_agent.0"

// configureGuestAgentChannel adds the channel of the guest agent to every guest, because an agent can be installed at
// any time. libvirt chooses the path of its socket.
func configureGuestAgentChannel(_ *v1.VirtualMachineInstance, _ Facts, domain *libvirtxml.Domain) error {
	domain.Devices.Channels = []libvirtxml.DomainChannel{{
		Source: &libvirtxml.DomainChardevSource{UNIX: &libvirtxml.DomainChardevSourceUNIX{}},
		Target: &libvirtxml.DomainChannelTarget{VirtIO: &libvirtxml.DomainChannelTargetVirtIO{Name: guestAgentChannel}},
	}}
	return nil
}
