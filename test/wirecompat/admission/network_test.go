// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package admission

import (
	"testing"

	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
)

func TestNetworks(t *testing.T) {
	noBridge := v1.KubeVirtConfiguration{
		NetworkConfiguration: &v1.NetworkConfiguration{PermitBridgeInterfaceOnPodNetwork: ptr.To(false)}}
	bridge := onPod(func(i *v1.Interface) { i.Masquerade, i.Bridge = nil, &v1.InterfaceBridge{} })
	binding := func(b v1.InterfaceBindingMethod) option {
		return onPod(func(i *v1.Interface) { i.InterfaceBindingMethod = b })
	}
	source := func(n v1.NetworkSource) option {
		return nic(v1.Interface{Name: "net",
			InterfaceBindingMethod: v1.InterfaceBindingMethod{Bridge: &v1.InterfaceBridge{}}}, n)
	}
	pod, multus := &v1.PodNetwork{}, &v1.MultusNetwork{NetworkName: "n"}
	state := func(s v1.InterfaceState) func(*v1.Interface) { return func(i *v1.Interface) { i.State = s } }
	first := at("interfaces[0].")
	decide(t, []testCase{
		{name: "no network", object: vmi()},
		{name: "masquerade", object: vmi(onPod(plain))},
		{name: "bridge on the Pod's network", object: vmi(bridge)},
		{name: "bridge on the Pod's network that is not permitted", config: noBridge, object: vmi(bridge), fields: []string{first + "bridge"},
			says: "Bridge on pod network configuration is not enabled under kubevirt-config"},
		{name: "default network that is not permitted", config: noBridge, object: vmi(), fields: []string{first + "bridge"}},
		{name: "default network of a template that is not permitted", config: noBridge, object: vm(), says: "keeps the VM from starting",
			differs: "KubeVirt refuses the VM; its defaults are those of the day on which it starts, so it is warned about"},
		{name: "masquerade off the Pod's network", object: vmi(onMultus("blue", func(i *v1.Interface) {
			i.Bridge, i.Masquerade = nil, &v1.InterfaceMasquerade{}
		})), fields: []string{first + "masquerade"}, says: "Masquerade interface only implemented with pod network"},
		{name: "secondary network", object: vmi(onPod(plain), onMultus("blue", plain))},
		{name: "two Pod networks", object: vmi(onPod(plain), source(v1.NetworkSource{Pod: pod})), fields: []string{"spec.networks"},
			says: "more than one interface is connected to a pod network in"},
		{name: "two default networks", object: vmi(source(v1.NetworkSource{Multus: &v1.MultusNetwork{NetworkName: "a", Default: true}}),
			nic(v1.Interface{Name: "b"}, v1.NetworkSource{Multus: &v1.MultusNetwork{NetworkName: "b", Default: true}})),
			fields: []string{"spec.networks"},
			says:   "Multus CNI should only have one default network"},
		{name: "Pod network beside a default network", object: vmi(onPod(plain), source(v1.NetworkSource{Multus: &v1.MultusNetwork{NetworkName: "a", Default: true}})),
			fields: []string{"spec.networks"}, says: "Pod network cannot be defined when Multus default network is defined"},
		{name: "network without a source", object: vmi(source(v1.NetworkSource{})), fields: []string{"spec.networks[0]"}, says: "should have a network type"},
		{name: "network with two sources", object: vmi(source(v1.NetworkSource{Pod: pod, Multus: multus})), fields: []string{"spec.networks[0]"},
			says: "should have only one network type"},
		{name: "secondary network without a name", object: vmi(source(v1.NetworkSource{Multus: &v1.MultusNetwork{}})),
			fields: []string{"spec.networks[0].multus.networkName"}, says: "CNI delegating plugin must have a networkName"},
		{name: "network without an interface", object: vmi(with(func(s *spec) {
			s.Networks = []v1.Network{{Name: "lone", NetworkSource: v1.NetworkSource{Pod: pod}}}
		})), fields: []string{"spec.networks[0].name"}, says: "spec.networks[0].name 'lone' not found."},
		{name: "interface without a network", object: vmi(devices(func(d *v1.Devices) { d.Interfaces = []v1.Interface{{Name: "lone"}} })),
			fields: []string{first + "name"}, says: "'lone' not found."},
		{name: "two interfaces of a network", object: vmi(onPod(plain), devices(func(d *v1.Devices) {
			d.Interfaces = append(d.Interfaces, v1.Interface{Name: "pod"})
		})), fields: []string{at("interfaces[1].name")}, says: "Only one interface can be connected to one specific network"},
		{name: "two networks of a name", object: vmi(onMultus("blue", plain), with(func(s *spec) {
			s.Networks = append(s.Networks, v1.Network{Name: "blue", NetworkSource: v1.NetworkSource{Multus: multus}})
		})), fields: []string{"spec.networks[1].name"}},
		{name: "interface name with an umlaut", object: vmi(nic(v1.Interface{Name: "bläu"}, v1.NetworkSource{Pod: pod})), fields: []string{first + "name"},
			says: "Network interface name can only contain alphabetical characters, numbers, dashes (-) or underscores (_)"},
		{name: "interface name with an underscore", object: vmi(nic(v1.Interface{Name: "Blue_1"}, v1.NetworkSource{Pod: pod}))},
		{name: "Pod network with an odd address range", object: vmi(nic(v1.Interface{Name: "pod", InterfaceBindingMethod: v1.InterfaceBindingMethod{
			Masquerade: &v1.InterfaceMasquerade{}}}, v1.NetworkSource{Pod: &v1.PodNetwork{VMNetworkCIDR: "10.0.2"}})),
			says: "keeps the VM from starting"},
		{name: "two bindings", object: vmi(onPod(func(i *v1.Interface) { i.Bridge = &v1.InterfaceBridge{} })), says: "keeps the VM from starting"},
		{name: "plugin", object: vmi(onPod(func(i *v1.Interface) { i.Masquerade, i.Binding = nil, &v1.PluginBinding{Name: "p"} }))},
		{name: "plugin and method", object: vmi(onPod(func(i *v1.Interface) { i.Binding = &v1.PluginBinding{Name: "p"} })), fields: []string{first + "binding"},
			says: "interface cannot have both binding plugin and interface binding method"},
		{name: "slirp", object: vmi(binding(v1.InterfaceBindingMethod{DeprecatedSlirp: &v1.DeprecatedInterfaceSlirp{}})), fields: []string{first + "slirp"},
			says: "Slirp interface support has been discontinued since v1.3"},
		{name: "passt as it was", object: vmi(binding(v1.InterfaceBindingMethod{DeprecatedPasst: &v1.DeprecatedInterfacePasst{}})), fields: []string{first + "passt"}},
		{name: "macvtap", object: vmi(binding(v1.InterfaceBindingMethod{DeprecatedMacvtap: &v1.DeprecatedInterfaceMacvtap{}})), fields: []string{first + "macvtap"}},
		{name: "passt", object: vmi(binding(v1.InterfaceBindingMethod{PasstBinding: &v1.InterfacePasstBinding{}}))},
		{name: "passt without the gate", config: without("PasstBinding"), object: vmi(binding(v1.InterfaceBindingMethod{PasstBinding: &v1.InterfacePasstBinding{}})),
			fields: []string{first + "passtBinding"}, says: "PasstBinding feature gate is not enabled"},
		{name: "passt off the Pod's network", object: vmi(onMultus("blue", func(i *v1.Interface) {
			i.Bridge, i.PasstBinding = nil, &v1.InterfacePasstBinding{}
		})), fields: []string{first + "passtBinding"}, says: "PasstBinding interface only implemented with pod network"},
		{name: "link that is down", object: vmi(onPod(state(v1.InterfaceStateLinkDown)))},
		{name: "state that is none", object: vmi(onPod(state("sleeping"))), fields: []string{first + "state"}, says: "logical pod interface state value is unsupported: sleeping"},
		{name: "absent interface", object: vmi(onMultus("blue", state(v1.InterfaceStateAbsent)))},
		{name: "absent interface of the Pod", object: vmi(onPod(func(i *v1.Interface) {
			i.Masquerade, i.Bridge, i.State = nil, &v1.InterfaceBridge{}, v1.InterfaceStateAbsent
		})), fields: []string{first + "state"}, says: "is not supported on default networks"},
		{name: "absent interface with masquerade", object: vmi(onPod(state(v1.InterfaceStateAbsent))), fields: []string{first + "state"}, says: "is supported only for bridge"},
		{name: "SR-IOV link that is down", object: vmi(onMultus("blue", func(i *v1.Interface) {
			i.Bridge, i.SRIOV, i.State = nil, &v1.InterfaceSRIOV{}, v1.InterfaceStateLinkDown
		})), fields: []string{first + "state"}, says: "is not supported for SR-IOV NICs"},
		{name: "resource claim without the gate", object: vmi(source(v1.NetworkSource{ResourceClaim: &v1.ClaimRequest{}})),
			fields: []string{"spec.networks[0].resourceClaim"},
			says:   "NetworkDevicesWithDRA feature gate is not enabled in kubevirt-config"},
		{name: "resource claim that is not there", config: gates("NetworkDevicesWithDRA"), object: vmi(nic(v1.Interface{Name: "net",
			InterfaceBindingMethod: v1.InterfaceBindingMethod{SRIOV: &v1.InterfaceSRIOV{}}},
			v1.NetworkSource{ResourceClaim: &v1.ClaimRequest{ClaimName: "c", RequestName: "r"}})),
			fields: []string{"spec.networks[0].resourceClaim.claimName"}, says: "which is not defined in spec.resourceClaims"},
	})
}

func TestInterfaces(t *testing.T) {
	mac := func(s string) option { return onPod(func(i *v1.Interface) { i.MacAddress = s }) }
	ports := func(p ...v1.Port) option { return onPod(func(i *v1.Interface) { i.Ports = p }) }
	dhcp := func(o v1.DHCPOptions) option { return onPod(func(i *v1.Interface) { i.DHCPOptions = &o }) }
	private := func(n ...int) option {
		var o v1.DHCPOptions
		for _, number := range n {
			o.PrivateOptions = append(o.PrivateOptions, v1.DHCPPrivateOptions{Option: number, Value: "v"})
		}
		return dhcp(o)
	}
	ranges := func(r ...v1.PortRange) option { return onPod(func(i *v1.Interface) { i.PortRanges = r }) }
	many := func(count int32) (r []v1.PortRange) {
		for i := range count {
			r = append(r, v1.PortRange{Protocol: "TCP", Start: 100 + i, End: 100 + i})
		}
		return r
	}
	gate := gates("PortRangesSpec")
	first := at("interfaces[0].")
	decide(t, []testCase{
		{name: "interface model", object: vmi(onPod(func(i *v1.Interface) { i.Model = "e1000e" }))},
		{name: "unknown interface model", object: vmi(onPod(func(i *v1.Interface) { i.Model = "ne1000" })), fields: []string{first + "model"},
			says: "uses model ne1000 that is not supported."},
		{name: "hardware address", object: vmi(mac("de:ad:00:00:be:af"))},
		{name: "hardware address with dashes", object: vmi(mac("de-ad-00-00-be-af"))},
		{name: "malformed hardware address", object: vmi(mac("de:ad:00:00:be")), fields: []string{first + "macAddress"},
			says: "has malformed MAC address (de:ad:00:00:be)."},
		{name: "hardware address that is too long", object: vmi(mac("de:ad:00:00:be:af:be:af")), fields: []string{first + "macAddress"}, says: "that is too long."},
		{name: "reserved hardware address", object: vmi(mac("02:00:00:00:00:00")), fields: []string{first + "macAddress"},
			says: "The requested MAC address is reserved for the in-pod bridge. Please choose another one."},
		{name: "PCI address of an interface", object: vmi(onPod(func(i *v1.Interface) { i.PciAddress = "0000:81:01.0" }))},
		{name: "malformed PCI address of an interface", object: vmi(onPod(func(i *v1.Interface) { i.PciAddress = "81:01.0" })), fields: []string{first + "pciAddress"},
			says: "has malformed PCI address (81:01.0)."},
		{name: "ACPI index beyond the last", object: vmi(onPod(func(i *v1.Interface) { i.ACPIIndex = 1 << 20 })), says: "keeps the VM from starting"},
		{name: "boot order of zero", object: vmi(onPod(func(i *v1.Interface) { i.BootOrder = ptr.To(uint(0)) })), fields: []string{first + "bootOrder"},
			says: "must have a boot order > 0, if supplied"},
		{name: "ports", object: vmi(ports(v1.Port{Name: "http", Port: 80}, v1.Port{Name: "dns", Port: 53, Protocol: "UDP"}))},
		{name: "port without a number", object: vmi(ports(v1.Port{Name: "http"})), fields: []string{first + "ports[0].port"}, says: "Port field is mandatory."},
		{name: "negative port", object: vmi(ports(v1.Port{Port: -80})), fields: []string{first + "ports[0].port"}, says: "Port field must be in range 0 < x < 65536."},
		{name: "port after the last", object: vmi(ports(v1.Port{Port: 65536})), says: "keeps the VM from starting"},
		{name: "port far after the last", object: vmi(ports(v1.Port{Port: 80000})), fields: []string{first + "ports[0].port"}, says: "Port field must be in range 0 < x < 65536."},
		{name: "port of another protocol", object: vmi(ports(v1.Port{Port: 80, Protocol: "SCTP"})), fields: []string{first + "ports[0].protocol"},
			says: "Unknown protocol, only TCP or UDP allowed"},
		{name: "two ports of a name", object: vmi(ports(v1.Port{Name: "http", Port: 80}, v1.Port{Name: "http", Port: 81})), fields: []string{first + "ports[1].name"},
			says: "Duplicate name of the port: http"},
		{name: "port name that is none", object: vmi(ports(v1.Port{Name: "-web", Port: 80})), fields: []string{first + "ports[0].name"}, says: "Invalid name of the port: -web"},
		{name: "port twice", object: vmi(ports(v1.Port{Port: 80}, v1.Port{Port: 80}))},
		{name: "port ranges without the gate", object: vmi(ranges(v1.PortRange{Protocol: "TCP", Start: 80, End: 90})), fields: []string{first + "portRanges"},
			says: "portRanges is specified on interface but the PortRangesSpec feature gate is not enabled"},
		{name: "port ranges", config: gate, object: vmi(ranges(v1.PortRange{Protocol: "TCP", Start: 80, End: 90}, v1.PortRange{Protocol: "UDP", Start: 85, End: 95}))},
		{name: "port range of another protocol", config: gate, object: vmi(ranges(v1.PortRange{Protocol: "SCTP", Start: 80, End: 90})),
			fields: []string{first + "portRanges[0].protocol"}, says: "Unknown protocol, only TCP or UDP allowed"},
		{name: "port range from zero", config: gate, object: vmi(ranges(v1.PortRange{Protocol: "TCP", End: 90})), fields: []string{first + "portRanges[0].start"},
			says: "Start must be a valid port number, 0 < x < 65536"},
		{name: "port range beyond the last", config: gate, object: vmi(ranges(v1.PortRange{Protocol: "TCP", Start: 80, End: 70000})),
			fields: []string{first + "portRanges[0].end"}, says: "End must be a valid port number, 0 < x < 65536"},
		{name: "ten port ranges", config: gate, object: vmi(ranges(many(10)...))},
		{name: "eleven port ranges", config: gate, object: vmi(ranges(many(11)...)), fields: []string{first + "portRanges"}, says: "must have at most 10 items"},
		{name: "port range backwards", config: gate, object: vmi(ranges(v1.PortRange{Protocol: "TCP", Start: 90, End: 80})),
			fields: []string{first + "portRanges[0].start"}, says: "Start must be less than or equal to end"},
		{name: "NTP servers", object: vmi(dhcp(v1.DHCPOptions{NTPServers: []string{"10.0.0.1", "10.0.0.2"}}))},
		{name: "NTP server by name", object: vmi(dhcp(v1.DHCPOptions{NTPServers: []string{"10.0.0.1", "time.example.org"}})),
			fields: []string{first + "dhcpOptions.ntpServers[1]"}, says: "NTP servers must be a list of valid IPv4 addresses."},
		{name: "NTP server of IPv6", object: vmi(dhcp(v1.DHCPOptions{NTPServers: []string{"::1"}})), fields: []string{first + "dhcpOptions.ntpServers[0]"}},
		{name: "private options", object: vmi(private(224, 254))},
		{name: "private option below the range", object: vmi(private(223)), fields: []string{first + "dhcpOptions.privateOptions[0].option"},
			says: "provided DHCPPrivateOptions are out of range, must be in range 224 to 254"},
		{name: "private option beyond the range", object: vmi(private(255)), fields: []string{first + "dhcpOptions.privateOptions[0].option"}},
		{name: "private option twice", object: vmi(private(240, 240)), fields: []string{first + "dhcpOptions.privateOptions[1].option"},
			says: "Found Duplicates: you have provided duplicate DHCPPrivateOptions"},
	})
}
