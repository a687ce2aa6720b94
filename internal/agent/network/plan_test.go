// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package network

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/wire/brokerapi/networkapi"
)

// vmiWith returns a VMI with some changes.
func vmiWith(change func(*v1.VirtualMachineInstance)) *v1.VirtualMachineInstance {
	vmi := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "fedora", UID: "1"}}
	change(vmi)
	return vmi
}

func addInterface(vmi *v1.VirtualMachineInstance, i v1.Interface, source v1.NetworkSource) {
	vmi.Spec.Domain.Devices.Interfaces = append(vmi.Spec.Domain.Devices.Interfaces, i)
	vmi.Spec.Networks = append(vmi.Spec.Networks, v1.Network{Name: i.Name, NetworkSource: source})
}

func masqueraded() v1.Interface {
	return v1.Interface{Name: "default",
		InterfaceBindingMethod: v1.InterfaceBindingMethod{Masquerade: &v1.InterfaceMasquerade{}}}
}

func bridged(name string) v1.Interface {
	return v1.Interface{Name: name, InterfaceBindingMethod: v1.InterfaceBindingMethod{Bridge: &v1.InterfaceBridge{}}}
}

func podNetwork() v1.NetworkSource { return v1.NetworkSource{Pod: &v1.PodNetwork{}} }

func TestNewPlan(t *testing.T) {
	multus := v1.NetworkSource{Multus: &v1.MultusNetwork{NetworkName: "blue"}}
	vmi := vmiWith(func(vmi *v1.VirtualMachineInstance) {
		first := masqueraded()
		first.Ports = []v1.Port{{Port: 80}, {Port: 53, Protocol: "udp"}, {Port: 80, Protocol: "TCP"}}
		first.PortRanges = []v1.PortRange{{Protocol: "TCP", Start: 1000, End: 2000}}
		addInterface(vmi, first, v1.NetworkSource{Pod: &v1.PodNetwork{VMNetworkCIDR: "192.168.007.9/24"}})
		second := bridged("blue")
		second.MacAddress = "02:00:00:00:00:09"
		addInterface(vmi, second, multus)
		gone := bridged("gone")
		gone.State = v1.InterfaceStateAbsent
		addInterface(vmi, gone, multus)
	})
	plan, err := NewPlan(vmi)
	if err != nil {
		t.Fatal(err)
	}
	want := Plan{Interfaces: []Interface{
		{
			Name: "default", PodInterface: "eth0", Binding: Masquerade, MAC: stableMAC("default", "fedora", "default"),
			IPv4: netip.MustParsePrefix("192.168.7.0/24"), IPv6: netip.MustParsePrefix("fd10:0:2::/120"),
			Ports: []networkapi.PortRange{
				{Protocol: "TCP", First: 80, Last: 80}, {Protocol: "TCP", First: 1000, Last: 2000}, {Protocol: "UDP", First: 53, Last: 53},
			},
		},
		{Name: "blue", PodInterface: "pod16477688c0e", Binding: Bridge, MAC: []byte{2, 0, 0, 0, 0, 9}},
	}}
	if diff := cmp.Diff(want, plan, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
	if mac := plan.Interfaces[0].MAC; mac[0] != 0x02 {
		t.Errorf("%s is not locally administered", mac)
	}
}

func TestNewPlanRejects(t *testing.T) {
	cases := map[string]struct {
		change func(*v1.VirtualMachineInstance)
		want   string
	}{
		"no network": {func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.Domain.Devices.Interfaces = []v1.Interface{masqueraded()}
		}, "no network of this name"},
		"other binding": {func(vmi *v1.VirtualMachineInstance) {
			addInterface(vmi, v1.Interface{Name: "x"}, podNetwork())
		}, "only the bindings"},
		"masquerade elsewhere": {func(vmi *v1.VirtualMachineInstance) {
			addInterface(vmi, masqueraded(), v1.NetworkSource{Multus: &v1.MultusNetwork{NetworkName: "x"}})
		}, "Pod's network only"},
		"tiny network": {func(vmi *v1.VirtualMachineInstance) {
			addInterface(vmi, masqueraded(), v1.NetworkSource{Pod: &v1.PodNetwork{VMNetworkCIDR: "10.0.2.0/31"}})
		}, "must have room"},
		"wrong family": {func(vmi *v1.VirtualMachineInstance) {
			addInterface(vmi, masqueraded(), v1.NetworkSource{Pod: &v1.PodNetwork{VMIPv6NetworkCIDR: "10.0.2.0/24"}})
		}, "must be an IPv6 network"},
		"bad MAC": {func(vmi *v1.VirtualMachineInstance) {
			i := masqueraded()
			i.MacAddress = "x"
			addInterface(vmi, i, podNetwork())
		}, "macAddress"},
		"bad ports": {func(vmi *v1.VirtualMachineInstance) {
			i := masqueraded()
			i.PortRanges = []v1.PortRange{{Protocol: "TCP", Start: 9, End: 8}}
			addInterface(vmi, i, podNetwork())
		}, "no range of ports"},
		"ports beyond the last": {func(vmi *v1.VirtualMachineInstance) {
			i := masqueraded()
			i.PortRanges = []v1.PortRange{{Protocol: "TCP", Start: 65530, End: 65536 + 80}}
			addInterface(vmi, i, podNetwork())
		}, "no range of ports"},
		"another protocol": {func(vmi *v1.VirtualMachineInstance) {
			i := masqueraded()
			i.Ports = []v1.Port{{Protocol: "SCTP", Port: 80}}
			addInterface(vmi, i, podNetwork())
		}, "want TCP or UDP"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := NewPlan(vmiWith(c.change))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want an error with %q", err, c.want)
			}
		})
	}
}
