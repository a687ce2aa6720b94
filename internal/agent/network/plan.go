// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package network decides how a guest is connected to its Pod's network with a bridge, a tap and NAT, which
// virt-network-broker then makes step by step, and advertises the gateway to guests with IPv6.
package network

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"math"
	"net"
	"net/netip"
	"slices"
	"strings"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/domain"
	"github.com/vireo-project/vireo/internal/launcherpod/masquerade"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/wire/brokerapi/networkapi"
)

// Binding is how a guest's interface is connected to the Pod's interface.
type Binding string

// The bindings.
const (
	Masquerade Binding = "masquerade"
	Bridge     Binding = "bridge"
)

// Plan is the desired state of a Pod's network. It is computed from the VMI.
type Plan struct {
	// Interfaces are the guest's interfaces in the VMI's order.
	Interfaces []Interface
}

// Interface is one interface of a Plan.
type Interface struct {
	// Name is its name in the VMI.
	Name string
	// PodInterface is the name of the Pod's interface that it is connected to.
	PodInterface string
	// Binding is how the two are connected.
	Binding Binding
	// MAC is the guest's hardware address; empty with the bridge binding means that of the Pod's interface.
	MAC net.HardwareAddr
	// MultiQueue means that the tap has several queues. QEMU must open it accordingly.
	MultiQueue bool
	// IPv4 and IPv6 are the guest's private networks with masquerade.
	IPv4 netip.Prefix
	IPv6 netip.Prefix
	// Ports are the ports that are forwarded to the guest; none means all.
	Ports []networkapi.PortRange
	// Sidecar means that Istio's Envoy runs in the Pod: incoming connections go to it, and its own ones to the guest.
	Sidecar bool
	// MigrationTarget means that the guest has not yet migrated to the Pod: the ports of the migration are not forwarded.
	MigrationTarget bool
}

// ForMigrationTarget returns the plan for a Pod that is the target of a migration.
func ForMigrationTarget(p Plan) Plan {
	target := Plan{Interfaces: slices.Clone(p.Interfaces)}
	for i := range target.Interfaces {
		target.Interfaces[i].MigrationTarget = true
	}
	return target
}

// WithSidecar returns the plan for a Pod with Istio's sidecar.
func WithSidecar(p Plan) Plan {
	behind := Plan{Interfaces: slices.Clone(p.Interfaces)}
	for i := range behind.Interfaces {
		behind.Interfaces[i].Sidecar = true
	}
	return behind
}

// NewPlan returns the plan of a VMI.
func NewPlan(vmi *v1.VirtualMachineInstance) (Plan, error) {
	var plan Plan
	networks := map[string]v1.Network{}
	for _, network := range vmi.Spec.Networks {
		networks[network.Name] = network
	}
	devices := vmi.Spec.Domain.Devices
	for i := range devices.Interfaces {
		spec := &devices.Interfaces[i]
		if spec.State == v1.InterfaceStateAbsent {
			continue
		}
		network, ok := networks[spec.Name]
		if !ok {
			return Plan{}, fmt.Errorf("interface %s: spec.networks has no network of this name", spec.Name)
		}
		planned, err := planInterface(vmi, spec, network)
		if err != nil {
			return Plan{}, fmt.Errorf("interface %s: %w", spec.Name, err)
		}
		planned.MultiQueue = domain.InterfaceQueues(vmi, spec) > 1
		plan.Interfaces = append(plan.Interfaces, planned)
	}
	return plan, nil
}

func planInterface(vmi *v1.VirtualMachineInstance, spec *v1.Interface, network v1.Network) (Interface, error) {
	out := Interface{Name: spec.Name, PodInterface: podspec.PodInterface(&network)}
	if spec.MacAddress != "" {
		mac, err := net.ParseMAC(spec.MacAddress)
		if err != nil {
			return out, fmt.Errorf("macAddress: %w", err)
		}
		out.MAC = mac
	}
	switch {
	case spec.Bridge != nil:
		out.Binding = Bridge
		return out, nil
	case spec.Masquerade == nil:
		return out, fmt.Errorf("only the bindings masquerade and bridge can be connected")
	case network.Pod == nil:
		return out, fmt.Errorf("masquerade works on the Pod's network only")
	}
	out.Binding = Masquerade
	if out.MAC == nil {
		out.MAC = stableMAC(vmi.Namespace, vmi.Name, spec.Name)
	}
	var err error
	if out.IPv4, err = masquerade.IPv4(network.Pod.VMNetworkCIDR); err != nil {
		return out, fmt.Errorf("vmNetworkCIDR %w", err)
	}
	if out.IPv6, err = masquerade.IPv6(network.Pod.VMIPv6NetworkCIDR); err != nil {
		return out, fmt.Errorf("vmIPv6NetworkCIDR %w", err)
	}
	out.Ports, err = planPorts(spec)
	return out, err
}

// planPorts returns the ports to forward. KubeVirt accepts ports or portRanges; here, both can be set.
func planPorts(spec *v1.Interface) ([]networkapi.PortRange, error) {
	wanted := slices.Clone(spec.PortRanges)
	for _, port := range spec.Ports {
		wanted = append(wanted, v1.PortRange{Protocol: port.Protocol, Start: port.Port, End: port.Port})
	}
	out := make([]networkapi.PortRange, 0, len(wanted))
	for _, ports := range wanted {
		protocol := strings.ToUpper(ports.Protocol)
		switch protocol {
		case "":
			protocol = "TCP"
		case "TCP", "UDP":
		default:
			return nil, fmt.Errorf("the port's protocol is %s: want TCP or UDP", protocol)
		}
		if ports.Start < 1 || ports.End < ports.Start || ports.End > math.MaxUint16 {
			return nil, fmt.Errorf("%d to %d is no range of ports", ports.Start, ports.End)
		}
		out = append(out, networkapi.PortRange{Protocol: protocol, First: uint16(ports.Start), Last: uint16(ports.End)})
	}
	// Sorted, so that the order in the spec does not change the rules.
	slices.SortFunc(out, func(a, b networkapi.PortRange) int {
		return cmp.Or(strings.Compare(a.Protocol, b.Protocol), cmp.Compare(a.First, b.First), cmp.Compare(a.Last, b.Last))
	})
	return slices.Compact(out), nil
}

// stableMAC returns a locally administered address that a VM keeps over restarts: guests store it in their network
// configuration. Behind NAT it cannot conflict with others.
func stableMAC(parts ...string) net.HardwareAddr {
	sum := sha256.Sum256([]byte(strings.Join(parts, "/")))
	return net.HardwareAddr{0x02, sum[0], sum[1], sum[2], sum[3], sum[4]}
}
