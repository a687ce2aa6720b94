// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

type Network struct {
	Name          string `json:"name"`
	NetworkSource `json:",inline"`
}

type NetworkSource struct {
	Pod           *PodNetwork    `json:"pod,omitempty"`
	Multus        *MultusNetwork `json:"multus,omitempty"`
	ResourceClaim *ClaimRequest  `json:"resourceClaim,omitempty"`
}

type PodNetwork struct {
	VMNetworkCIDR     string `json:"vmNetworkCIDR,omitempty"`
	VMIPv6NetworkCIDR string `json:"vmIPv6NetworkCIDR,omitempty"`
}

type MultusNetwork struct {
	NetworkName string `json:"networkName"`
	Default     bool   `json:"default,omitempty"`
}

type Interface struct {
	Name                   string `json:"name"`
	Model                  string `json:"model,omitempty"`
	InterfaceBindingMethod `json:",inline"`
	Binding                *PluginBinding `json:"binding,omitempty"`
	Ports                  []Port         `json:"ports,omitempty"`
	// +optional
	// +listType=atomic
	PortRanges []PortRange `json:"portRanges,omitempty"`
	MacAddress string      `json:"macAddress,omitempty"`
	// +optional
	BootOrder *uint `json:"bootOrder,omitempty"`
	// +optional
	PciAddress string `json:"pciAddress,omitempty"`
	// +optional
	DHCPOptions *DHCPOptions `json:"dhcpOptions,omitempty"`
	// +optional
	Tag string `json:"tag,omitempty"`
	// +optional
	ACPIIndex int `json:"acpiIndex,omitempty"`
	// +optional
	State InterfaceState `json:"state,omitempty"`
}

type InterfaceBindingMethod struct {
	Bridge          *InterfaceBridge          `json:"bridge,omitempty"`
	DeprecatedSlirp *DeprecatedInterfaceSlirp `json:"slirp,omitempty"`
	Masquerade      *InterfaceMasquerade      `json:"masquerade,omitempty"`
	SRIOV           *InterfaceSRIOV           `json:"sriov,omitempty"`
	// +optional
	DeprecatedMacvtap *DeprecatedInterfaceMacvtap `json:"macvtap,omitempty"`
	// +optional
	DeprecatedPasst *DeprecatedInterfacePasst `json:"passt,omitempty"`
	PasstBinding    *InterfacePasstBinding    `json:"passtBinding,omitempty"`
}

type InterfaceBridge struct{}

type InterfaceMasquerade struct{}

type InterfaceSRIOV struct{}

type InterfacePasstBinding struct{}

type DeprecatedInterfaceSlirp struct{}

type DeprecatedInterfaceMacvtap struct{}

type DeprecatedInterfacePasst struct{}

type PluginBinding struct {
	Name string `json:"name"`
}

type InterfaceState string

// Values of InterfaceState.
const (
	InterfaceStateAbsent   InterfaceState = "absent"
	InterfaceStateLinkUp   InterfaceState = "up"
	InterfaceStateLinkDown InterfaceState = "down"
)

type Port struct {
	// +optional
	Name string `json:"name,omitempty"`
	// +optional
	Protocol string `json:"protocol,omitempty"`
	Port     int32  `json:"port"`
}

type PortRange struct {
	Protocol string `json:"protocol"`
	Start    int32  `json:"start"`
	End      int32  `json:"end"`
}

type DHCPOptions struct {
	// +optional
	BootFileName string `json:"bootFileName,omitempty"`
	// +optional
	TFTPServerName string `json:"tftpServerName,omitempty"`
	// +optional
	NTPServers []string `json:"ntpServers,omitempty"`
	// +optional
	PrivateOptions []DHCPPrivateOptions `json:"privateOptions,omitempty"`
}

type DHCPPrivateOptions struct {
	Option int    `json:"option"`
	Value  string `json:"value"`
}
