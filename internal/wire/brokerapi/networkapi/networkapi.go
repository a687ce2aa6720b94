// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package networkapi has the arguments and results of virt-network-broker's verbs. Those of the other programs are in
// package brokerapi.
package networkapi

import (
	"net"
	"net/netip"
)

// NetworkStateResult is the result of brokerapi.NetworkState.
type NetworkStateResult struct {
	// Links are the links of the Pod's network namespace.
	Links []Link `json:"links"`
}

// Link is a link of a Pod.
type Link struct {
	// Name is its name.
	Name string `json:"name"`
	// MAC is its hardware address.
	MAC net.HardwareAddr `json:"mac,omitempty"`
	// MTU is its MTU.
	MTU int `json:"mtu"`
	// Addresses are those of global scope.
	Addresses []netip.Prefix `json:"addresses,omitempty"`
}

// OpenRouterArguments are the arguments of brokerapi.OpenRouter.
type OpenRouterArguments struct {
	// Bridge is the name of the bridge between the guest and its gateway.
	Bridge string `json:"bridge"`
}

// OpenRouterResult is the result of brokerapi.OpenRouter. If the Pod has no IPv6, it is empty and comes without a
// descriptor.
type OpenRouterResult struct {
	// MAC is the hardware address of the guest's gateway.
	MAC []byte `json:"mac,omitempty"`
	// MTU is its MTU.
	MTU int `json:"mtu,omitempty"`
}

// ChangeNetworkArguments are the arguments of brokerapi.ChangeNetwork.
type ChangeNetworkArguments struct {
	// Steps are made one after the other, until one fails. virt-handler computes them from the VMI and the Pod's links.
	Steps []Step `json:"steps"`
}

// Change is what a Step does. Changes that were made before have no effect, except for Rename.
type Change string

// The changes, with the fields of a Step that they need.
const (
	// AddBridge adds a bridge of two ports: Link, MAC, MTU.
	AddBridge Change = "add-bridge"
	// AddTap adds a tap of QEMU's user: Link, MultiQueue.
	AddTap Change = "add-tap"
	// AddAddress adds an address to a link: Link, Address, NoRoute.
	AddAddress Change = "add-address"
	// RemoveAddress removes one: Link, Address.
	RemoveAddress Change = "remove-address"
	// SetMAC sets a link's hardware address: Link, MAC.
	SetMAC Change = "set-mac"
	// SetUp sets a link up: Link.
	SetUp Change = "set-up"
	// Rename sets a link down and renames it: Link, Other.
	Rename Change = "rename"
	// Attach attaches a link to a bridge and sets its MTU: Link, Other, MTU.
	Attach Change = "attach"
	// StopLearning makes a port of a bridge learn no addresses: Link.
	StopLearning Change = "stop-learning"
	// Set changes a setting: Setting, and Link with a setting of a link.
	Set Change = "set"
	// Translate replaces the rules of each family of addresses that has some: Rules, Ports.
	Translate Change = "translate"
)

// Setting is one of the kernel's settings of a network namespace that a Step changes, always to the same value.
type Setting string

// The settings.
const (
	// ForwardIPv4 and ForwardIPv6 forward packets between links.
	ForwardIPv4 Setting = "forward-ipv4"
	ForwardIPv6 Setting = "forward-ipv6"
	// DHCPPorts lets processes without capabilities listen on the ports of DHCP.
	DHCPPorts Setting = "dhcp-ports"
	// AcceptRA makes a link that accepts router advertisements accept them although the Pod forwards.
	AcceptRA Setting = "accept-ra"
	// IgnoreARP makes a link respond to no ARP requests for addresses of other links.
	IgnoreARP Setting = "ignore-arp"
	// RouteLoopback lets packets with loopback addresses pass a link.
	RouteLoopback Setting = "route-loopback"
)

// Step is one change of a Pod's network.
type Step struct {
	// Do is the change.
	Do Change `json:"do"`
	// Link is the name of the link that is changed, and Other that of its bridge, or its new name.
	Link  string `json:"link,omitempty"`
	Other string `json:"other,omitempty"`
	// MAC is a hardware address.
	MAC net.HardwareAddr `json:"mac,omitempty"`
	// MTU is an MTU.
	MTU int `json:"mtu,omitempty"`
	// Address is an address with the length of its network's prefix. NoRoute means that no route to that network is added.
	Address netip.Prefix `json:"address,omitzero"`
	NoRoute bool         `json:"noRoute,omitempty"`
	// MultiQueue means that the tap has several queues. QEMU must open it accordingly.
	MultiQueue bool `json:"multiQueue,omitempty"`
	// Setting is a setting.
	Setting Setting `json:"setting,omitempty"`
	// Rules are rules, and Ports those of the ones that are for listed ports.
	Rules []Rule      `json:"rules,omitempty"`
	Ports []PortRange `json:"ports,omitempty"`
}

// Chain is a place in the kernel where a Rule is applied.
type Chain string

// The chains.
const (
	// Guard is for packets that arrive, before anything else; it filters.
	Guard Chain = "guard"
	// Prerouting, Output and Postrouting are for the first packet of a connection: as it arrives, leaves a process, and
	// leaves the Pod.
	Prerouting  Chain = "prerouting"
	Output      Chain = "output"
	Postrouting Chain = "postrouting"
	// Apart is for packets that are forwarded; it filters.
	Apart Chain = "apart"
)

// Action is what happens to a packet that a Rule matches.
type Action string

// The actions.
const (
	// Drop drops the packet, and Return ends the chain.
	Drop   Action = "drop"
	Return Action = "return"
	// Hide gives the connection the address of the link by which it leaves as its source.
	Hide Action = "hide"
	// To and From give the connection Target as its destination or its source.
	To   Action = "to"
	From Action = "from"
)

// Rule is a rule of a chain. Empty fields match everything.
type Rule struct {
	// IPv6 selects the family of addresses.
	IPv6 bool `json:"ipv6,omitempty"`
	// Chain is the chain.
	Chain Chain `json:"chain"`
	// In and Out are the names of the links by which a packet arrives and leaves.
	In  string `json:"in,omitempty"`
	Out string `json:"out,omitempty"`
	// Source and Destination are networks.
	Source      netip.Prefix `json:"source,omitzero"`
	Destination netip.Prefix `json:"destination,omitzero"`
	// Ports are its destination ports, and Listed stands for those of the Step, which may be many.
	Ports  []PortRange `json:"ports,omitempty"`
	Listed bool        `json:"listed,omitempty"`
	// Do is what happens, with the address Target for an action that has one.
	Do     Action     `json:"do"`
	Target netip.Addr `json:"target,omitzero"`
}

// PortRange is a range of ports of one protocol.
type PortRange struct {
	// Protocol is TCP or UDP.
	Protocol string `json:"protocol"`
	// First and Last are the ends of the range, both included.
	First uint16 `json:"first"`
	Last  uint16 `json:"last"`
}
