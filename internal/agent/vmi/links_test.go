// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi

import (
	"testing"

	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/domain"
)

// TestWithOtherLink checks which links of a running guest are changed, and that nothing else of the interface is.
func TestWithOtherLink(t *testing.T) {
	const up, down, absent = v1.InterfaceStateLinkUp, v1.InterfaceStateLinkDown, v1.InterfaceStateAbsent
	for _, tc := range []struct {
		spec v1.InterfaceState
		live string
		want string
	}{
		{"", "", ""}, {up, "", ""}, {down, "", "down"},
		{"", "up", ""}, {up, "up", ""}, {down, "up", "down"},
		{"", "down", "up"}, {up, "down", "up"}, {down, "down", ""},
		{absent, "", ""}, {absent, "down", ""},
	} {
		nic := libvirtxml.DomainInterface{
			MAC:    &libvirtxml.DomainInterfaceMAC{Address: "02:00:00:00:00:01"},
			Target: &libvirtxml.DomainInterfaceTarget{Dev: "tap0", Managed: "no"},
			Alias:  &libvirtxml.DomainAlias{Name: domain.InterfaceAlias("blue")},
		}
		if tc.live != "" {
			nic.Link = &libvirtxml.DomainInterfaceLink{State: tc.live}
		}
		live := &libvirtxml.Domain{Devices: &libvirtxml.DomainDeviceList{Interfaces: []libvirtxml.DomainInterface{{}, nic}}}
		got := withOtherLink(&v1.Interface{Name: "blue", State: tc.spec}, live)
		if got == nil {
			if tc.want != "" {
				t.Errorf("spec %q, domain %q: nothing changes, want %q", tc.spec, tc.live, tc.want)
			}
			continue
		}
		if got.Link.State != tc.want || got.MAC != nic.MAC || got.Target != nic.Target || got.Alias != nic.Alias {
			t.Errorf("spec %q, domain %q: got %+v, want %q", tc.spec, tc.live, got, tc.want)
		}
		if linkOf(&live.Devices.Interfaces[1]) == tc.want {
			t.Error("the observed domain was changed")
		}
	}
	if got := withOtherLink(&v1.Interface{Name: "red", State: down}, &libvirtxml.Domain{}); got != nil {
		t.Errorf("got %+v for an interface that the domain does not have", got)
	}
}
