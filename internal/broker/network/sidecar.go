// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package network

import (
	"net/netip"
	"slices"

	"github.com/google/nftables/expr"
)

// sidecarPorts are Envoy's own. Source: https://istio.io/latest/docs/ops/deployment/application-requirements; KubeVirt's list.
var sidecarPorts = []uint16{15000, 15001, 15004, 15006, 15008, 15009, 15020, 15021, 15053, 15090}

// localhost is the source address of connections between Envoy and the other processes of the sidecar.
var localhost = netip.MustParsePrefix("127.0.0.1/32")

// bypassingSidecar returns those of the forwarded ports whose connections do not go through Envoy: SSH, as in KubeVirt, and the
// ports of migrations, which the Pod's annotations exclude from Envoy.
func bypassingSidecar(forwarded []PortRange) []PortRange {
	bypassing := []PortRange{{Protocol: "TCP", First: 22, Last: 22}, migrationPorts}
	if len(forwarded) == 0 {
		return bypassing
	}
	var out []PortRange
	for _, p := range bypassing {
		for _, f := range forwarded {
			if p.Protocol == f.Protocol && p.First <= f.Last && f.First <= p.Last {
				out = append(out, PortRange{Protocol: p.Protocol, First: max(p.First, f.First), Last: min(p.Last, f.Last)})
			}
		}
	}
	return slices.Compact(out)
}

// sidecarToGuest redirects Envoy's connections to the Pod's address to the guest, but for those to the sidecar's own ports.
func sidecarToGuest(planned Interface, pod podState, to netip.Addr) []rule {
	if !planned.Sidecar {
		return nil
	}
	var rules []rule
	if len(planned.Ports) == 0 {
		for _, port := range sidecarPorts {
			rules = append(rules, match("saddr "+localhost.String(), sourceIn(localhost)).
				and(portMatch(PortRange{Protocol: "TCP", First: port, Last: port})).then("return", verdict(expr.VerdictReturn)))
		}
	}
	for _, address := range pod.addresses {
		if address.Addr().Is4() == to.Is4() {
			host := netip.PrefixFrom(address.Addr(), address.Addr().BitLen())
			rules = append(rules, forward(planned, match("daddr "+host.String(), destinationIn(host)), to)...)
		}
	}
	return rules
}
