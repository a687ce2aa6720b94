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

// localhost is where Envoy and what runs beside it connect from when they talk to each other.
var localhost = netip.MustParsePrefix("127.0.0.1/32")

// pastSidecar are the ports of those that are forwarded at which a guest is reached without Envoy: SSH, as with KubeVirt, and those by
// which it migrates, which the Pod's annotations take from Envoy.
func pastSidecar(forwarded []PortRange) []PortRange {
	past := []PortRange{{Protocol: "TCP", First: 22, Last: 22}, migrationPorts}
	if len(forwarded) == 0 {
		return past
	}
	var out []PortRange
	for _, p := range past {
		for _, f := range forwarded {
			if p.Protocol == f.Protocol && p.First <= f.Last && f.First <= p.Last {
				out = append(out, PortRange{Protocol: p.Protocol, First: max(p.First, f.First), Last: min(p.Last, f.Last)})
			}
		}
	}
	return slices.Compact(out)
}

// fromSidecar passes on to the guest what Envoy sends to the Pod's address, and leaves to Envoy what is its own.
func fromSidecar(planned Interface, pod seen, to netip.Addr) []rule {
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
