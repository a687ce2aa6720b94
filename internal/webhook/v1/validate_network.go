// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"net"
	"regexp"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// reservedMAC is the address of the bridge that virt-broker creates in the Pod for masquerade (KubeVirt:
// pkg/network/link).
var reservedMAC = net.HardwareAddr{0x02, 0, 0, 0, 0, 0}

var (
	interfaceModels = []string{"", "e1000", "e1000e", "igb", "ne2k_pci", "pcnet", "rtl8139", v1.VirtIO}
	interfaceName   = regexp.MustCompile(`^[A-Za-z0-9-_]+$`)
	interfaceStates = []v1.InterfaceState{
		"", v1.InterfaceStateAbsent, v1.InterfaceStateLinkUp, v1.InterfaceStateLinkDown,
	}
)

// lastPortOfKubeVirt is one more than the last port. specsupport.ImpossibleInVMI reports it.
const lastPortOfKubeVirt = 65536

// maxPortRanges is the limit of KubeVirt's schema for the port ranges of an interface.
const maxPortRanges = 10

func checkNetworks(c *check) {
	p := c.at("networks")
	if c.tooMany(p, len(c.spec.Networks)) {
		return
	}
	interfaces := map[string]bool{}
	for i := range c.spec.Domain.Devices.Interfaces {
		interfaces[c.spec.Domain.Devices.Interfaces[i].Name] = true
	}
	seen := map[string]bool{}
	pods, defaults := 0, 0
	for i := range c.spec.Networks {
		network, at := &c.spec.Networks[i], p.Index(i)
		if seen[network.Name] {
			c.errs = append(c.errs, field.Duplicate(at.Child("name"), network.Name))
		}
		seen[network.Name] = true
		if !interfaces[network.Name] {
			c.required(at.Child("name"), "%s '%s' not found. Add an interface of that name to domain.devices.interfaces.",
				at.Child("name"), network.Name)
		}
		c.networkSource(at, network)
		if network.Pod != nil {
			pods++
		}
		if network.Multus != nil && network.Multus.Default {
			defaults++
		}
	}
	if pods > 1 {
		c.invalid(p, pods, "more than one interface is connected to a pod network in %s", c.devices("interfaces"))
	}
	if defaults > 1 {
		c.invalid(p, defaults, "Multus CNI should only have one default network")
	}
	if pods > 0 && defaults > 0 {
		c.invalid(p, "pod, multus", "Pod network cannot be defined when Multus default network is defined")
	}
}

func (c *check) networkSource(at *field.Path, network *v1.Network) {
	n := 0
	for _, set := range []bool{network.Pod != nil, network.Multus != nil, network.ResourceClaim != nil} {
		if set {
			n++
		}
	}
	switch {
	case n == 0:
		c.required(at, "should have a network type")
	case n > 1:
		c.invalid(at, network.Name, "should have only one network type")
	}
	if network.Multus != nil && network.Multus.NetworkName == "" {
		c.required(at.Child("multus", "networkName"), "CNI delegating plugin must have a networkName")
	}
}

func checkInterfaces(c *check) {
	p := c.devices("interfaces")
	if c.tooMany(p, len(c.spec.Domain.Devices.Interfaces)) {
		return
	}
	networks := c.networksByName()
	seen := map[string]bool{}
	for i := range c.spec.Domain.Devices.Interfaces {
		iface, at := &c.spec.Domain.Devices.Interfaces[i], p.Index(i)
		name := at.Child("name")
		if seen[iface.Name] {
			c.invalid(name, iface.Name, "Only one interface can be connected to one specific network")
		}
		seen[iface.Name] = true
		if !interfaceName.MatchString(iface.Name) {
			c.invalid(name, iface.Name,
				"Network interface name can only contain alphabetical characters, numbers, dashes (-) or underscores (_)")
		}
		network := networks[iface.Name]
		if network == nil {
			c.invalid(name, iface.Name, "%s '%s' not found. Add a network of that name to spec.networks.", name, iface.Name)
		}
		c.binding(at, iface, network)
		c.interfaceHardware(at, iface)
		c.interfaceState(at.Child("state"), iface, network)
	}
}

func (c *check) networksByName() map[string]*v1.Network {
	networks := map[string]*v1.Network{}
	for i := range c.spec.Networks {
		networks[c.spec.Networks[i].Name] = &c.spec.Networks[i]
	}
	return networks
}

func (c *check) binding(at *field.Path, iface *v1.Interface, network *v1.Network) {
	b := &iface.InterfaceBindingMethod
	if iface.Binding != nil && *b != (v1.InterfaceBindingMethod{}) {
		c.invalid(at.Child("binding"), iface.Binding.Name,
			"logical %s interface cannot have both binding plugin and interface binding method", iface.Name)
	}
	switch {
	case b.DeprecatedSlirp != nil:
		c.invalid(at.Child("slirp"), "{}", "Slirp interface support has been discontinued since v1.3. Use masquerade.")
	case b.DeprecatedMacvtap != nil:
		c.invalid(at.Child("macvtap"), "{}", "Macvtap network interface is not supported. Use bridge.")
	case b.DeprecatedPasst != nil:
		c.invalid(at.Child("passt"), "{}", "Passt network interface is not supported. Use masquerade.")
	}
	if network == nil {
		return
	}
	if b.Masquerade != nil && network.Pod == nil {
		c.invalid(at.Child("masquerade"), "{}", "Masquerade interface only implemented with pod network")
	}
	if b.PasstBinding != nil && !c.config.IsEnabled(gatePasst) {
		c.forbidden(at.Child("passtBinding"), "%s feature gate is not enabled", gatePasst)
	}
	if b.PasstBinding != nil && network.Pod == nil {
		c.invalid(at.Child("passtBinding"), "{}", "PasstBinding interface only implemented with pod network")
	}
	if b.Bridge != nil && network.Pod != nil && !c.config.Network.PermitBridgeOnPodNetwork {
		c.forbidden(at.Child("bridge"), "Bridge on pod network configuration is not enabled under kubevirt-config. "+
			"Use masquerade, or set configuration.network.permitBridgeInterfaceOnPodNetwork in the KubeVirt object.")
	}
}

func (c *check) interfaceHardware(at *field.Path, iface *v1.Interface) {
	if !slices.Contains(interfaceModels, iface.Model) {
		c.invalid(at.Child("model"), iface.Model, "interface %s uses model %s that is not supported. Use one of %v.",
			at.Child("name"), iface.Model, interfaceModels[1:])
	}
	if iface.MacAddress != "" {
		mac, err := net.ParseMAC(iface.MacAddress)
		p := at.Child("macAddress")
		switch {
		case err != nil:
			c.invalid(p, iface.MacAddress, "interface %s has malformed MAC address (%s).", at.Child("name"), iface.MacAddress)
		case len(mac) > len(reservedMAC):
			c.invalid(p, iface.MacAddress, "interface %s has MAC address (%s) that is too long.", at.Child("name"),
				iface.MacAddress)
		case iface.Masquerade != nil && mac.String() == reservedMAC.String():
			c.invalid(p, iface.MacAddress,
				"The requested MAC address is reserved for the in-pod bridge. Please choose another one.")
		}
	}
	if iface.PciAddress != "" && !pciAddress.MatchString(iface.PciAddress) {
		c.invalid(at.Child("pciAddress"), iface.PciAddress, "interface %s has malformed PCI address (%s).",
			at.Child("name"), iface.PciAddress)
	}
}

func (c *check) interfaceState(p *field.Path, iface *v1.Interface, network *v1.Network) {
	state := iface.State
	if !slices.Contains(interfaceStates, state) {
		c.invalid(p, state, "logical %s interface state value is unsupported: %s", iface.Name, state)
	}
	if iface.SRIOV != nil && (state == v1.InterfaceStateLinkUp || state == v1.InterfaceStateLinkDown) {
		c.invalid(p, state, "%q interface's state %q is not supported for SR-IOV NICs", iface.Name, state)
	}
	if state != v1.InterfaceStateAbsent {
		return
	}
	if iface.Bridge == nil && iface.Binding == nil && iface.SRIOV == nil {
		c.invalid(p, state, "%q interface's state %q is supported only for bridge, SR-IOV or binding plugins", iface.Name,
			state)
	}
	if network != nil && (network.Pod != nil || network.Multus != nil && network.Multus.Default) {
		c.invalid(p, state, "%q interface's state %q is not supported on default networks", iface.Name, state)
	}
}

// checkPorts checks the ports of interfaces on the Pod network. Other interfaces ignore their ports.
func checkPorts(c *check) {
	networks := c.networksByName()
	names := map[string]bool{}
	for i := range c.spec.Domain.Devices.Interfaces {
		iface := &c.spec.Domain.Devices.Interfaces[i]
		if network := networks[iface.Name]; network == nil || network.Pod == nil {
			continue
		}
		for j, port := range iface.Ports {
			at := c.devices("interfaces").Index(i).Child("ports").Index(j)
			switch {
			case port.Port == 0:
				c.required(at.Child("port"), "Port field is mandatory.")
			case port.Port < 0 || port.Port > lastPortOfKubeVirt:
				c.invalid(at.Child("port"), port.Port, "Port field must be in range 0 < x < 65536.")
			}
			if port.Protocol != "" && port.Protocol != "TCP" && port.Protocol != "UDP" {
				c.invalid(at.Child("protocol"), port.Protocol, "Unknown protocol, only TCP or UDP allowed")
			}
			c.portName(at.Child("name"), port.Name, names)
		}
	}
}

// checkPortRanges applies the rules of KubeVirt 1.9, where port ranges are alpha. Source: kubevirt/kubevirt
// pkg/network/admitter.
func checkPortRanges(c *check) {
	for i := range c.spec.Domain.Devices.Interfaces {
		iface := &c.spec.Domain.Devices.Interfaces[i]
		if len(iface.PortRanges) == 0 {
			continue
		}
		at := c.devices("interfaces").Index(i).Child("portRanges")
		switch {
		case !c.config.IsEnabled(clusterconfig.GatePortRanges):
			c.invalid(at, iface.Name, "portRanges is specified on interface but the %s feature gate is not enabled. "+
				"Add it to configuration.developerConfiguration.featureGates of the KubeVirt object, or use ports.",
				clusterconfig.GatePortRanges)
			continue
		case iface.Masquerade == nil:
			c.invalid(at, iface.Name, "portRanges are only supported on masquerade interfaces")
		case len(iface.Ports) > 0:
			c.invalid(at, iface.Name,
				"Cannot define both ports and portRanges on interface. Write a port as a range from and to itself.")
		}
		if len(iface.PortRanges) > maxPortRanges {
			c.errs = append(c.errs, field.TooMany(at, len(iface.PortRanges), maxPortRanges))
			continue // Each of them may overlap with all others.
		}
		for j := range iface.PortRanges {
			c.portRange(at, iface.PortRanges, j)
		}
	}
}

// portRange checks one range. If it is valid, it also checks for overlaps with earlier ranges.
func (c *check) portRange(at *field.Path, ranges []v1.PortRange, j int) {
	errs := len(c.errs)
	portRange, p := ranges[j], at.Index(j)
	if portRange.Protocol != "TCP" && portRange.Protocol != "UDP" {
		c.invalid(p.Child("protocol"), portRange.Protocol, "Unknown protocol, only TCP or UDP allowed")
	}
	if !isPort(portRange.Start) {
		c.invalid(p.Child("start"), portRange.Start, "Start must be a valid port number, 0 < x < 65536")
	}
	if !isPort(portRange.End) {
		c.invalid(p.Child("end"), portRange.End, "End must be a valid port number, 0 < x < 65536")
	}
	if isPort(portRange.Start) && isPort(portRange.End) && portRange.Start > portRange.End {
		c.invalid(p.Child("start"), portRange.Start, "Start must be less than or equal to end")
	}
	if len(c.errs) > errs {
		return
	}
	for _, other := range ranges[:j] {
		if other.Protocol == portRange.Protocol && other.Start <= portRange.End && portRange.Start <= other.End {
			c.invalid(p, portRange.Start, "%s portRanges [%d-%d] and [%d-%d] overlap", portRange.Protocol, other.Start,
				other.End, portRange.Start, portRange.End)
		}
	}
}

func isPort(n int32) bool { return n > 0 && n <= 65535 }

func (c *check) portName(p *field.Path, name string, taken map[string]bool) {
	if name == "" {
		return
	}
	if taken[name] {
		c.invalid(p, name, "Duplicate name of the port: %s", name)
	}
	taken[name] = true
	if msgs := validation.IsValidPortName(name); len(msgs) > 0 {
		c.invalid(p, name, "Invalid name of the port: %s (%s)", name, msgs[0])
	}
}

func checkDHCP(c *check) {
	for i := range c.spec.Domain.Devices.Interfaces {
		dhcp := c.spec.Domain.Devices.Interfaces[i].DHCPOptions
		if dhcp == nil {
			continue
		}
		at := c.devices("interfaces").Index(i).Child("dhcpOptions")
		for j, server := range dhcp.NTPServers {
			if net.ParseIP(server).To4() == nil {
				c.invalid(at.Child("ntpServers").Index(j), server, "NTP servers must be a list of valid IPv4 addresses.")
			}
		}
		seen := map[int]bool{}
		for j, option := range dhcp.PrivateOptions {
			p := at.Child("privateOptions").Index(j).Child("option")
			if option.Option < launcherpod.FirstPrivateOption || option.Option > launcherpod.LastPrivateOption {
				c.invalid(p, option.Option, "provided DHCPPrivateOptions are out of range, must be in range 224 to 254")
			}
			if seen[option.Option] {
				c.invalid(p, option.Option, "Found Duplicates: you have provided duplicate DHCPPrivateOptions")
			}
			seen[option.Option] = true
		}
	}
}
