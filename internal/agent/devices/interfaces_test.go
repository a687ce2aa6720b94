// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package devices

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
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
		if LinkOf(&live.Devices.Interfaces[1]) == tc.want {
			t.Error("the observed domain was changed")
		}
	}
	if got := withOtherLink(&v1.Interface{Name: "red", State: down}, &libvirtxml.Domain{}); got != nil {
		t.Errorf("got %+v for an interface that the domain does not have", got)
	}
}

// TestNetworkStatusIsDistrusted checks invalid values: everyone who may change a Pod's annotations may write this one.
func TestNetworkStatusIsDistrusted(t *testing.T) {
	many := strings.Repeat(`"10.0.0.1",`, 100) + `"10.0.0.2"`
	for name, tc := range map[string]struct {
		text string
		want map[string][]string
	}{
		"none":         {"", nil},
		"no JSON":      {"[{", nil},
		"no addresses": {`[{"interface":"a","ips":["localhost","fe80::1%eth0","10.0.0.300","::1 "]}]`, map[string][]string{"a": nil}},
		"too long":     {`[{"interface":"` + strings.Repeat("a", maxNetworkStatus) + `"}]`, nil},
		"many":         {`[{"interface":"a","ips":[` + many + `]}]`, map[string][]string{"a": strings.Split(strings.Repeat("10.0.0.1 ", 16), " ")[:16]}},
		"the default":  {`[{"default":true,"ips":["10.0.0.1"]}]`, map[string][]string{"eth0": {"10.0.0.1"}}},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{}
			pod.Annotations = map[string]string{networkStatusAnnotation: tc.text}
			if diff := cmp.Diff(tc.want, AttachedNetworks(pod)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// FuzzNetworkStatus checks that only addresses are read from an annotation that others than Multus can write.
func FuzzNetworkStatus(f *testing.F) {
	f.Fuzz(func(t *testing.T, annotation string) {
		pod := &corev1.Pod{}
		pod.Annotations = map[string]string{networkStatusAnnotation: annotation}
		for name, ips := range AttachedNetworks(pod) {
			if len(ips) > maxNetworkIPs {
				t.Errorf("%s has %d addresses", name, len(ips))
			}
			for _, ip := range ips {
				if parsed, err := netip.ParseAddr(ip); err != nil || parsed.String() != ip || parsed.Zone() != "" {
					t.Errorf("%s has the address %q", name, ip)
				}
			}
		}
	})
}
