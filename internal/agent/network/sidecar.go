// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package network

import (
	"net/netip"
	"slices"

	"github.com/vireo-project/vireo/internal/brokerapi/networkapi"
)

// sidecarPorts are Envoy's own. Source: https://istio.io/latest/docs/ops/deployment/application-requirements; KubeVirt's list.
var sidecarPorts = []uint16{15000, 15001, 15004, 15006, 15008, 15009, 15020, 15021, 15053, 15090}

// localhost is the source address of connections between Envoy and the other processes of the sidecar.
var localhost = netip.MustParsePrefix("127.0.0.1/32")

// bypassingSidecar returns those of the forwarded ports whose connections do not go through Envoy: SSH, as in KubeVirt, and the
// ports of migrations, which the Pod's annotations exclude from Envoy.
func bypassingSidecar(forwarded []networkapi.PortRange) []networkapi.PortRange {
	bypassing := []networkapi.PortRange{{Protocol: "TCP", First: 22, Last: 22}, migrationPorts}
	if len(forwarded) == 0 {
		return bypassing
	}
	var out []networkapi.PortRange
	for _, p := range bypassing {
		for _, f := range forwarded {
			if p.Protocol == f.Protocol && p.First <= f.Last && f.First <= p.Last {
				out = append(out, networkapi.PortRange{Protocol: p.Protocol, First: max(p.First, f.First), Last: min(p.Last, f.Last)})
			}
		}
	}
	return slices.Compact(out)
}

// sidecarToGuest redirects Envoy's connections to the Pod's address to the guest, but for those to the sidecar's own ports.
func sidecarToGuest(planned *Interface, pod networkapi.Link, to netip.Addr) []networkapi.Rule {
	if !planned.Sidecar {
		return nil
	}
	var rules []networkapi.Rule
	if len(planned.Ports) == 0 {
		own := networkapi.Rule{Chain: networkapi.Output, Source: localhost, Do: networkapi.Return}
		for _, port := range sidecarPorts {
			own.Ports = append(own.Ports, networkapi.PortRange{Protocol: "TCP", First: port, Last: port})
		}
		rules = append(rules, own)
	}
	for _, host := range hosts(pod, to) {
		rules = append(rules, forward(planned, networkapi.Rule{Chain: networkapi.Output, Destination: host}, to)...)
	}
	return rules
}
