// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podspec

import (
	"slices"
	"strconv"
	"strings"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// Labels and annotations of Pods that Istio reads. Source: https://istio.io/latest/docs/reference/config/annotations.
const (
	// SidecarLabel requests the injection of Envoy. It is a label, and an annotation in older releases.
	SidecarLabel = "sidecar.istio.io/inject"
	// Interfaces whose inbound traffic is the outbound traffic of a workload. Older releases read the first, newer ones the
	// second.
	kubevirtInterfaces       = "traffic.sidecar.istio.io/kubevirtInterfaces"
	rerouteVirtualInterfaces = "istio.io/reroute-virtual-interfaces"
	// Ports that bypass Envoy.
	excludeInboundPorts  = "traffic.sidecar.istio.io/excludeInboundPorts"
	excludeOutboundPorts = "traffic.sidecar.istio.io/excludeOutboundPorts"
)

// HasSidecar reports whether these labels of a Pod request Istio's sidecar.
func HasSidecar(labels map[string]string) bool {
	return strings.EqualFold(labels[SidecarLabel], "true")
}

// labelForSidecar copies the annotation of a VMI to the Pod's labels, because newer releases of Istio read only the label.
func labelForSidecar(labels map[string]string, vmi *v1.VirtualMachineInstance) {
	if value, ok := vmi.Annotations[SidecarLabel]; ok {
		labels[SidecarLabel] = value
	}
}

// annotateForSidecar adds the interface of the guest, if its packets pass the Pod's network stack, and excludes the ports of
// migrations: these connections have TLS of their own, which a mesh with strict mTLS would refuse.
func annotateForSidecar(annotations, labels map[string]string, vmi *v1.VirtualMachineInstance) {
	if !slices.ContainsFunc(vmi.Spec.Domain.Devices.Interfaces, func(i v1.Interface) bool { return i.Masquerade != nil }) {
		return
	}
	bridge := launcherpod.BridgePrefix + launcherpod.PrimaryInterface
	annotations[kubevirtInterfaces], annotations[rerouteVirtualInterfaces] = bridge, bridge
	if !HasSidecar(labels) {
		return
	}
	for _, key := range []string{excludeInboundPorts, excludeOutboundPorts} {
		for port := launcherpod.FirstMigrationPort; port <= launcherpod.LastMigrationPort; port++ {
			annotations[key] = addPort(annotations[key], port)
		}
	}
}

// addPort adds a port to a comma-separated list.
func addPort(list string, port int) string {
	ports := strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })
	if text := strconv.Itoa(port); !slices.Contains(ports, text) {
		ports = append(ports, text)
	}
	return strings.Join(ports, ",")
}
