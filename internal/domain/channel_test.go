// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain_test

import (
	"testing"

	"libvirt.org/go/libvirtxml"
)

func TestGuestAgentChannelIsAlwaysThere(t *testing.T) {
	want := []libvirtxml.DomainChannel{{
		Source: &libvirtxml.DomainChardevSource{UNIX: &libvirtxml.DomainChardevSourceUNIX{}},
		Target: &libvirtxml.DomainChannelTarget{
			VirtIO: &libvirtxml.DomainChannelTargetVirtIO{Name: "org.qemu.guest_agent.0"}},
	}}
	expectEqual(t, makeGuest().build(t).Devices.Channels, want)
	expectEqual(t, headless().build(t).Devices.Channels, want)
}
