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

// What Istio reads of a Pod. Source: https://istio.io/latest/docs/reference/config/annotations.
const (
	// sidecarInject is a label, and an annotation of its older releases: Envoy is to be injected.
	sidecarInject = "sidecar.istio.io/inject"
	// What comes in by these interfaces is sent by a workload. Older and newer releases read one of the two each.
	kubevirtInterfaces       = "traffic.sidecar.istio.io/kubevirtInterfaces"
	rerouteVirtualInterfaces = "istio.io/reroute-virtual-interfaces"
	// Ports that pass by Envoy.
	excludeInboundPorts  = "traffic.sidecar.istio.io/excludeInboundPorts"
	excludeOutboundPorts = "traffic.sidecar.istio.io/excludeOutboundPorts"
)

// HasSidecar says that a Pod with these labels gets Istio's sidecar by its own wish.
func HasSidecar(labels map[string]string) bool {
	return strings.EqualFold(labels[sidecarInject], "true")
}

// labelForSidecar turns the annotation of a VMI into the Pod's label, which is all that newer releases of Istio read.
func labelForSidecar(labels map[string]string, vmi *v1.VirtualMachineInstance) {
	if wish, ok := vmi.Annotations[sidecarInject]; ok {
		labels[sidecarInject] = wish
	}
}

// annotateForSidecar says where the guest's packets come from, if they pass the Pod's own network stack. Guests migrate past Envoy: their
// connections are encrypted for the two Pods alone, and a mesh that demands certificates of its own would refuse them.
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

// addPort adds a port to a list with commas.
func addPort(list string, port int) string {
	ports := strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })
	if text := strconv.Itoa(port); !slices.Contains(ports, text) {
		ports = append(ports, text)
	}
	return strings.Join(ports, ",")
}
