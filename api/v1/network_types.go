// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

// Network is what an interface connects to.
type Network struct {
	// name is its name and that of its interface.
	Name          string `json:"name"`
	NetworkSource `json:",inline"`
}

// NetworkSource is the kind of a network. One member is set.
type NetworkSource struct {
	// pod is the Pod's network.
	Pod *PodNetwork `json:"pod,omitempty"`
	// multus is a network that Multus attaches.
	Multus *MultusNetwork `json:"multus,omitempty"`
	// resourceClaim is a network device by resource claim.
	ResourceClaim *ClaimRequest `json:"resourceClaim,omitempty"`
}

// IsPrimary reports whether the network is that of the Pod's primary interface.
func (n *Network) IsPrimary() bool { return n.Pod != nil || n.Multus != nil && n.Multus.Default }

// IsPluggable reports whether interfaces on the network can be plugged into a running guest and unplugged: it is one of
// Multus' beside the primary one.
func (n *Network) IsPluggable() bool { return n.Multus != nil && !n.Multus.Default }

// PodNetwork is the Pod's network.
type PodNetwork struct {
	// vmNetworkCIDR is the IPv4 network between guest and Pod, for masquerade. Default: 10.0.2.0/24.
	VMNetworkCIDR string `json:"vmNetworkCIDR,omitempty"`
	// vmIPv6NetworkCIDR is the IPv6 network between guest and Pod, for masquerade. Default: fd10:0:2::/120.
	VMIPv6NetworkCIDR string `json:"vmIPv6NetworkCIDR,omitempty"`
}

// MultusNetwork is a network that Multus attaches.
type MultusNetwork struct {
	// networkName names a NetworkAttachmentDefinition, with or without its namespace and a slash.
	NetworkName string `json:"networkName"`
	// default makes it the Pod's default network. Default: false.
	Default bool `json:"default,omitempty"`
}

// Interface is a network interface of the guest.
type Interface struct {
	// name is its name and that of its network.
	Name string `json:"name"`
	// model is virtio (the default), e1000, e1000e, igb, ne2k_pci, pcnet or rtl8139.
	Model                  string `json:"model,omitempty"`
	InterfaceBindingMethod `json:",inline"`
	// binding names a binding plugin of the KubeVirt object.
	Binding *PluginBinding `json:"binding,omitempty"`
	// ports are the ports that reach the guest, for masquerade. Default: all.
	Ports []Port `json:"ports,omitempty"`
	// portRanges are ranges of ports that reach the guest, for masquerade.
	// +optional
	// +listType=atomic
	PortRanges []PortRange `json:"portRanges,omitempty"`
	// macAddress is the hardware address, such as de:ad:00:00:be:af. Default: the Pod's for bridge, otherwise a stable
	// one.
	MacAddress string `json:"macAddress,omitempty"`
	// bootOrder is its place among the devices to boot from, from 1 on. Default: not booted from.
	// +optional
	BootOrder *uint `json:"bootOrder,omitempty"`
	// pciAddress is its PCI address, such as 0000:81:01.0. Default: the next free one.
	// +optional
	PciAddress string `json:"pciAddress,omitempty"`
	// dhcpOptions are further options that the guest gets by DHCP.
	// +optional
	DHCPOptions *DHCPOptions `json:"dhcpOptions,omitempty"`
	// tag is passed to the guest in the config drive.
	// +optional
	Tag string `json:"tag,omitempty"`
	// acpiIndex is a number from 1 to 16383 by which the guest names it. Default: none.
	// +optional
	ACPIIndex int `json:"acpiIndex,omitempty"`
	// state is up (the default), down or absent.
	// +optional
	State InterfaceState `json:"state,omitempty"`
}

// InterfaceBindingMethod is how an interface is connected. One member is set. Default: the cluster's on the Pod's
// network, otherwise bridge.
type InterfaceBindingMethod struct {
	// bridge puts the guest on the network itself; on the Pod's network it gets the Pod's address.
	Bridge *InterfaceBridge `json:"bridge,omitempty"`
	// slirp was removed from KubeVirt 1.3 and is refused.
	DeprecatedSlirp *DeprecatedInterfaceSlirp `json:"slirp,omitempty"`
	// masquerade puts the guest behind the Pod's address.
	Masquerade *InterfaceMasquerade `json:"masquerade,omitempty"`
	// sriov gives the guest a virtual function of the node's network card.
	SRIOV *InterfaceSRIOV `json:"sriov,omitempty"`
	// macvtap was removed from KubeVirt 1.3 and is refused.
	// +optional
	DeprecatedMacvtap *DeprecatedInterfaceMacvtap `json:"macvtap,omitempty"`
	// passt was removed from KubeVirt 1.3 and is refused.
	// +optional
	DeprecatedPasst *DeprecatedInterfacePasst `json:"passt,omitempty"`
	// passtBinding connects the guest by passt.
	PasstBinding *InterfacePasstBinding `json:"passtBinding,omitempty"`
}

// InterfaceBridge has no options.
type InterfaceBridge struct{}

// InterfaceMasquerade has no options.
type InterfaceMasquerade struct{}

// InterfaceSRIOV has no options.
type InterfaceSRIOV struct{}

// InterfacePasstBinding has no options.
type InterfacePasstBinding struct{}

// DeprecatedInterfaceSlirp has no options.
type DeprecatedInterfaceSlirp struct{}

// DeprecatedInterfaceMacvtap has no options.
type DeprecatedInterfaceMacvtap struct{}

// DeprecatedInterfacePasst has no options.
type DeprecatedInterfacePasst struct{}

// PluginBinding names a binding plugin.
type PluginBinding struct {
	// name is its name.
	Name string `json:"name"`
}

// InterfaceState is whether an interface exists and is connected.
type InterfaceState string

// Values of InterfaceState.
const (
	// InterfaceStateAbsent removes it.
	InterfaceStateAbsent InterfaceState = "absent"
	// InterfaceStateLinkUp connects it.
	InterfaceStateLinkUp InterfaceState = "up"
	// InterfaceStateLinkDown disconnects it.
	InterfaceStateLinkDown InterfaceState = "down"
)

// Port is a port that reaches the guest.
type Port struct {
	// name is its name, for Services. Default: none.
	// +optional
	Name string `json:"name,omitempty"`
	// protocol is TCP (the default) or UDP.
	// +optional
	Protocol string `json:"protocol,omitempty"`
	// port is its number, from 1 to 65535.
	Port int32 `json:"port"`
}

// PortRange is a range of ports that reach the guest.
type PortRange struct {
	// protocol is TCP or UDP.
	Protocol string `json:"protocol"`
	// start is the first port.
	Start int32 `json:"start"`
	// end is the last port.
	End int32 `json:"end"`
}

// DHCPOptions are further options that the guest gets by DHCP.
type DHCPOptions struct {
	// bootFileName is option 67.
	// +optional
	BootFileName string `json:"bootFileName,omitempty"`
	// tftpServerName is option 66.
	// +optional
	TFTPServerName string `json:"tftpServerName,omitempty"`
	// ntpServers are IPv4 addresses, option 42.
	// +optional
	NTPServers []string `json:"ntpServers,omitempty"`
	// privateOptions are options from 224 to 254.
	// +optional
	PrivateOptions []DHCPPrivateOptions `json:"privateOptions,omitempty"`
}

// DHCPPrivateOptions is an option for private use.
type DHCPPrivateOptions struct {
	// option is its number, from 224 to 254.
	Option int `json:"option"`
	// value is its text.
	Value string `json:"value"`
}
