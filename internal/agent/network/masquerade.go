// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package network

import (
	"net"
	"net/netip"
	"slices"

	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/wire/brokerapi/networkapi"
)

// gatewayMAC is the bridge's hardware address with masquerade. It is the same in all Pods, so that the gateway of a
// guest that migrates keeps its address. Source: KubeVirt.
var gatewayMAC = net.HardwareAddr{0x02, 0, 0, 0, 0, 0}

var loopback = netip.MustParsePrefix("127.0.0.0/8")

// migrationPorts are not forwarded on a migration target until the guest runs there: the migration may use them.
var migrationPorts = networkapi.PortRange{Protocol: "TCP", First: launcherpod.FirstMigrationPort,
	Last: launcherpod.LastMigrationPort}

// masquerade connects the guest by NAT to the Pod's address. The Pod's interface does not change.
func (c *connector) masquerade(planned *Interface) (networkapi.Link, error) {
	pod, found := c.links[planned.PodInterface]
	if !found {
		return pod, &MissingInterfaceError{Name: planned.PodInterface}
	}
	c.set(networkapi.ForwardIPv4, "")
	name := launcherpod.Bridge(planned.PodInterface)
	c.addBridge(name, gatewayMAC, pod.MTU)
	// Connections inside the Pod to its loopback address are redirected to the guest.
	c.set(networkapi.RouteLoopback, name)
	c.addAddress(name, gateway(planned.IPv4), false)
	if has(pod, netip.Addr.Is6) {
		c.set(networkapi.AcceptRA, planned.PodInterface)
		c.set(networkapi.ForwardIPv6, "")
		c.addAddress(name, gateway(planned.IPv6), false)
	}
	c.setUp(name)
	// Before the tap, so that the guest's first packet is translated.
	c.translate(planned, pod)
	c.addTap(planned, name, pod.MTU)
	return pod, nil
}

// translate adds the rules for the families of the Pod's addresses.
func (c *connector) translate(planned *Interface, pod networkapi.Link) {
	rules := Rules(planned, pod)
	if len(rules) > 0 {
		c.add(networkapi.Step{Do: networkapi.Translate, Rules: rules, Ports: planned.Ports})
	}
}

// Rules returns the rules for the families of a Pod's addresses.
func Rules(planned *Interface, pod networkapi.Link) []networkapi.Rule {
	var rules []networkapi.Rule
	if has(pod, netip.Addr.Is4) {
		rules = ipv4Rules(planned, pod)
	}
	if has(pod, netip.Addr.Is6) {
		rules = append(rules, ipv6Rules(planned, pod)...)
	}
	return rules
}

func ipv4Rules(planned *Interface, pod networkapi.Link) []networkapi.Rule {
	bridge, to := launcherpod.Bridge(planned.PodInterface), guest(planned.IPv4)
	return slices.Concat(
		inbound(planned, pod, to),
		// Probes and sidecars inside the Pod reach the guest at the Pod's loopback address.
		sidecarToGuest(planned, pod, to),
		forward(planned, networkapi.Rule{Chain: networkapi.Output, Destination: loopback}, to),
		[]networkapi.Rule{
			outbound(planned, planned.IPv4),
			{Chain: networkapi.Postrouting, Source: loopback, Out: bridge, Do: networkapi.From, Target: gateway(planned.IPv4).Addr()},
			// route_localnet accepts loopback addresses on the bridge. This drops those that the guest sends.
			{Chain: networkapi.Guard, In: bridge, Destination: loopback, Do: networkapi.Drop},
		},
		isolateMigrationNetwork(false))
}

func ipv6Rules(planned *Interface, pod networkapi.Link) []networkapi.Rule {
	return slices.Concat(inbound(planned, pod, guest(planned.IPv6)), []networkapi.Rule{outbound(planned, planned.IPv6)},
		isolateMigrationNetwork(true))
}

// isolateMigrationNetwork blocks guests from the migration network. The Pod may have an interface there, and forwards.
func isolateMigrationNetwork(ipv6 bool) []networkapi.Rule {
	return []networkapi.Rule{
		{IPv6: ipv6, Chain: networkapi.Apart, In: launcherpod.MigrationInterface, Do: networkapi.Drop},
		{IPv6: ipv6, Chain: networkapi.Apart, Out: launcherpod.MigrationInterface, Do: networkapi.Drop},
	}
}

// inbound redirects connections to the Pod's addresses to the guest. With a sidecar, they go to the sidecar.
func inbound(planned *Interface, pod networkapi.Link, to netip.Addr) []networkapi.Rule {
	var rules []networkapi.Rule
	for _, host := range hosts(pod, to) {
		from := networkapi.Rule{IPv6: to.Is6(), Chain: networkapi.Prerouting, In: planned.PodInterface, Destination: host}
		if !planned.Sidecar {
			rules = append(rules, forward(planned, from, to)...)
		} else if from.Ports = bypassingSidecar(planned.Ports); len(from.Ports) > 0 {
			rules = append(rules, forward(planned, from, to)...)
		}
	}
	return rules
}

// hosts returns the Pod's addresses of the family of another one.
func hosts(pod networkapi.Link, like netip.Addr) []netip.Prefix {
	var list []netip.Prefix
	for _, address := range pod.Addresses {
		if address.Addr().Is4() == like.Is4() {
			list = append(list, netip.PrefixFrom(address.Addr(), address.Addr().BitLen()))
		}
	}
	return list
}

// forward redirects matching connections to the guest: those to the ports of the rule if it has some, those to the
// listed ports, or all if none is listed.
func forward(planned *Interface, from networkapi.Rule, to netip.Addr) []networkapi.Rule {
	var rules []networkapi.Rule
	if planned.MigrationTarget {
		but := from
		but.Ports, but.Do = []networkapi.PortRange{migrationPorts}, networkapi.Return
		rules = append(rules, but)
	}
	from.Listed = len(from.Ports) == 0 && len(planned.Ports) > 0
	from.Do, from.Target = networkapi.To, to
	return append(rules, from)
}

// outbound translates the guest's addresses to the Pod's.
func outbound(planned *Interface, network netip.Prefix) networkapi.Rule {
	return networkapi.Rule{
		IPv6: network.Addr().Is6(), Chain: networkapi.Postrouting, Source: network, Out: planned.PodInterface,
		Do: networkapi.Hide,
	}
}
