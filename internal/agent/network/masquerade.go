// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package network

import (
	"net"
	"net/netip"
	"slices"

	"github.com/vireo-project/vireo/internal/brokerapi"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/launcherpod/podiface"
)

// gatewayMAC is the bridge's hardware address with masquerade. It is the same in all Pods, so that the gateway of a guest that
// migrates keeps its address. Source: KubeVirt.
var gatewayMAC = net.HardwareAddr{0x02, 0, 0, 0, 0, 0}

var loopback = netip.MustParsePrefix("127.0.0.0/8")

// migrationPorts are not forwarded on a migration target until the guest runs there: the migration may use them.
var migrationPorts = brokerapi.PortRange{Protocol: "TCP", First: launcherpod.FirstMigrationPort, Last: launcherpod.LastMigrationPort}

// masquerade connects the guest by NAT to the Pod's address. The Pod's interface does not change.
func (c *connector) masquerade(planned *Interface) (brokerapi.Link, error) {
	pod, found := c.links[planned.PodInterface]
	if !found {
		return pod, &MissingInterfaceError{Name: planned.PodInterface}
	}
	c.set(brokerapi.ForwardIPv4, "")
	name := podiface.Bridge(planned.PodInterface)
	c.addBridge(name, gatewayMAC, pod.MTU)
	// Connections inside the Pod to its loopback address are redirected to the guest.
	c.set(brokerapi.RouteLoopback, name)
	c.addAddress(name, gateway(planned.IPv4), false)
	if has(pod, netip.Addr.Is6) {
		c.set(brokerapi.AcceptRA, planned.PodInterface)
		c.set(brokerapi.ForwardIPv6, "")
		c.addAddress(name, gateway(planned.IPv6), false)
	}
	c.setUp(name)
	// Before the tap, so that the guest's first packet is translated.
	c.translate(planned, pod)
	c.addTap(planned, name, pod.MTU)
	return pod, nil
}

// translate adds the rules for the families of the Pod's addresses.
func (c *connector) translate(planned *Interface, pod brokerapi.Link) {
	rules := Rules(planned, pod)
	if len(rules) > 0 {
		c.add(brokerapi.Step{Do: brokerapi.Translate, Rules: rules, Ports: planned.Ports})
	}
}

// Rules returns the rules for the families of a Pod's addresses.
func Rules(planned *Interface, pod brokerapi.Link) []brokerapi.Rule {
	var rules []brokerapi.Rule
	if has(pod, netip.Addr.Is4) {
		rules = ipv4Rules(planned, pod)
	}
	if has(pod, netip.Addr.Is6) {
		rules = append(rules, ipv6Rules(planned, pod)...)
	}
	return rules
}

func ipv4Rules(planned *Interface, pod brokerapi.Link) []brokerapi.Rule {
	bridge, to := podiface.Bridge(planned.PodInterface), guest(planned.IPv4)
	return slices.Concat(
		inbound(planned, pod, to),
		// Probes and sidecars inside the Pod reach the guest at the Pod's loopback address.
		sidecarToGuest(planned, pod, to),
		forward(planned, brokerapi.Rule{Chain: brokerapi.Output, Destination: loopback}, to),
		[]brokerapi.Rule{
			outbound(planned, planned.IPv4),
			{Chain: brokerapi.Postrouting, Source: loopback, Out: bridge, Do: brokerapi.From, Target: gateway(planned.IPv4).Addr()},
			// route_localnet accepts loopback addresses on the bridge. This drops those that the guest sends.
			{Chain: brokerapi.Guard, In: bridge, Destination: loopback, Do: brokerapi.Drop},
		},
		isolateMigrationNetwork(false))
}

func ipv6Rules(planned *Interface, pod brokerapi.Link) []brokerapi.Rule {
	return slices.Concat(inbound(planned, pod, guest(planned.IPv6)), []brokerapi.Rule{outbound(planned, planned.IPv6)}, isolateMigrationNetwork(true))
}

// isolateMigrationNetwork blocks guests from the migration network. The Pod may have an interface there, and forwards.
func isolateMigrationNetwork(ipv6 bool) []brokerapi.Rule {
	return []brokerapi.Rule{
		{IPv6: ipv6, Chain: brokerapi.Apart, In: podiface.Migration, Do: brokerapi.Drop},
		{IPv6: ipv6, Chain: brokerapi.Apart, Out: podiface.Migration, Do: brokerapi.Drop},
	}
}

// inbound redirects connections to the Pod's addresses to the guest. With a sidecar, they go to the sidecar.
func inbound(planned *Interface, pod brokerapi.Link, to netip.Addr) []brokerapi.Rule {
	var rules []brokerapi.Rule
	for _, host := range hosts(pod, to) {
		from := brokerapi.Rule{IPv6: to.Is6(), Chain: brokerapi.Prerouting, In: planned.PodInterface, Destination: host}
		if !planned.Sidecar {
			rules = append(rules, forward(planned, from, to)...)
		} else if from.Ports = bypassingSidecar(planned.Ports); len(from.Ports) > 0 {
			rules = append(rules, forward(planned, from, to)...)
		}
	}
	return rules
}

// hosts returns the Pod's addresses of the family of another one.
func hosts(pod brokerapi.Link, like netip.Addr) []netip.Prefix {
	var list []netip.Prefix
	for _, address := range pod.Addresses {
		if address.Addr().Is4() == like.Is4() {
			list = append(list, netip.PrefixFrom(address.Addr(), address.Addr().BitLen()))
		}
	}
	return list
}

// forward redirects matching connections to the guest: those to the ports of the rule if it has some, those to the listed ports, or all if
// none is listed.
func forward(planned *Interface, from brokerapi.Rule, to netip.Addr) []brokerapi.Rule {
	var rules []brokerapi.Rule
	if planned.MigrationTarget {
		but := from
		but.Ports, but.Do = []brokerapi.PortRange{migrationPorts}, brokerapi.Return
		rules = append(rules, but)
	}
	from.Listed = len(from.Ports) == 0 && len(planned.Ports) > 0
	from.Do, from.Target = brokerapi.To, to
	return append(rules, from)
}

// outbound translates the guest's addresses to the Pod's.
func outbound(planned *Interface, network netip.Prefix) brokerapi.Rule {
	return brokerapi.Rule{
		IPv6: network.Addr().Is6(), Chain: brokerapi.Postrouting, Source: network, Out: planned.PodInterface, Do: brokerapi.Hide,
	}
}
