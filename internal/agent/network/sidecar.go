// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package network

import (
	"net/netip"
	"slices"

	"github.com/vireo-project/vireo/internal/brokerapi"
)

// sidecarPorts are Envoy's own. Source: https://istio.io/latest/docs/ops/deployment/application-requirements; KubeVirt's list.
var sidecarPorts = []uint16{15000, 15001, 15004, 15006, 15008, 15009, 15020, 15021, 15053, 15090}

// localhost is the source address of connections between Envoy and the other processes of the sidecar.
var localhost = netip.MustParsePrefix("127.0.0.1/32")

// bypassingSidecar returns those of the forwarded ports whose connections do not go through Envoy: SSH, as in KubeVirt, and the
// ports of migrations, which the Pod's annotations exclude from Envoy.
func bypassingSidecar(forwarded []brokerapi.PortRange) []brokerapi.PortRange {
	bypassing := []brokerapi.PortRange{{Protocol: "TCP", First: 22, Last: 22}, migrationPorts}
	if len(forwarded) == 0 {
		return bypassing
	}
	var out []brokerapi.PortRange
	for _, p := range bypassing {
		for _, f := range forwarded {
			if p.Protocol == f.Protocol && p.First <= f.Last && f.First <= p.Last {
				out = append(out, brokerapi.PortRange{Protocol: p.Protocol, First: max(p.First, f.First), Last: min(p.Last, f.Last)})
			}
		}
	}
	return slices.Compact(out)
}

// sidecarToGuest redirects Envoy's connections to the Pod's address to the guest, but for those to the sidecar's own ports.
func sidecarToGuest(planned *Interface, pod brokerapi.Link, to netip.Addr) []brokerapi.Rule {
	if !planned.Sidecar {
		return nil
	}
	var rules []brokerapi.Rule
	if len(planned.Ports) == 0 {
		own := brokerapi.Rule{Chain: brokerapi.Output, Source: localhost, Do: brokerapi.Return}
		for _, port := range sidecarPorts {
			own.Ports = append(own.Ports, brokerapi.PortRange{Protocol: "TCP", First: port, Last: port})
		}
		rules = append(rules, own)
	}
	for _, host := range hosts(pod, to) {
		rules = append(rules, forward(planned, brokerapi.Rule{Chain: brokerapi.Output, Destination: host}, to)...)
	}
	return rules
}
