// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package brokerapi

import (
	"fmt"
	"net"
	"net/netip"
	"regexp"
)

// Binding is how a guest's interface is connected to the Pod's interface.
type Binding string

// The bindings.
const (
	Masquerade Binding = "masquerade"
	Bridge     Binding = "bridge"
)

// Plan is the desired state of a Pod's network. virt-handler computes it from the VMI.
type Plan struct {
	// Interfaces are the guest's interfaces in the VMI's order.
	Interfaces []Interface `json:"interfaces,omitempty"`
}

// Interface is one interface of a Plan.
type Interface struct {
	// Name is its name in the VMI.
	Name string `json:"name"`
	// PodInterface is the name of the Pod's interface that it is connected to.
	PodInterface string `json:"podInterface"`
	// Binding is how the two are connected.
	Binding Binding `json:"binding"`
	// MAC is the guest's hardware address; empty with the bridge binding means that of the Pod's interface.
	MAC net.HardwareAddr `json:"mac,omitempty"`
	// MultiQueue means that the tap has several queues. QEMU must open it accordingly.
	MultiQueue bool `json:"multiQueue,omitempty"`
	// IPv4 and IPv6 are the guest's private networks with masquerade.
	IPv4 netip.Prefix `json:"ipv4"`
	IPv6 netip.Prefix `json:"ipv6"`
	// Ports are the ports that are forwarded to the guest; none means all.
	Ports []PortRange `json:"ports,omitempty"`
	// Sidecar means that Istio's Envoy runs in the Pod: incoming connections go to it, and its own ones to the guest.
	Sidecar bool `json:"sidecar,omitempty"`
	// MigrationTarget means that the guest has not yet migrated to the Pod: the ports of the migration are not forwarded.
	MigrationTarget bool `json:"migrationTarget,omitempty"`
}

// PortRange is a range of ports of one protocol.
type PortRange struct {
	// Protocol is TCP or UDP.
	Protocol string `json:"protocol"`
	// First and Last are the ends of the range, both included.
	First uint16 `json:"first"`
	Last  uint16 `json:"last"`
}

// Limits of a Plan.
const (
	maxInterfaces = 64
	maxPorts      = 4096
	maxName       = 253
)

// podInterface matches names of a Pod's interfaces: eth0, and those that virt-controller chooses. The names of the guest's devices
// are derived from them, and files with the kernel's settings are found by them.
var podInterface = regexp.MustCompile(`^[a-z][a-z0-9]{1,13}$`)

// CheckPodInterface returns an error if no Pod's interface to which a guest is connected has a name.
func CheckPodInterface(name string) error {
	// A name of pod and eleven digits loses its prefix in those that are derived from it.
	const longest, hashed = 11, 14
	if !podInterface.MatchString(name) || name == "lo" || len(name) > longest && len(name) != hashed {
		return Invalid("%q is no name of an interface of a launcher Pod", name)
	}
	return nil
}

// Check returns an error unless a plan is one that virt-handler can compute from a VMI.
func (p Plan) Check() error {
	if len(p.Interfaces) > maxInterfaces {
		return Invalid("the plan has %d interfaces, and at most %d are allowed", len(p.Interfaces), maxInterfaces)
	}
	names, on := map[string]bool{}, map[string]bool{}
	for i := range p.Interfaces {
		planned := &p.Interfaces[i]
		if err := planned.check(); err != nil {
			return err
		}
		if names[planned.Name] || on[planned.PodInterface] {
			return Invalid("the plan has interface %.32q on %s twice", planned.Name, planned.PodInterface)
		}
		names[planned.Name], on[planned.PodInterface] = true, true
	}
	return nil
}

func (i *Interface) check() error {
	if len(i.Name) > maxName {
		return Invalid("the name of an interface has %d bytes", len(i.Name))
	}
	if err := CheckPodInterface(i.PodInterface); err != nil {
		return err
	}
	if err := checkPorts(i.Ports); err != nil {
		return err
	}
	if len(i.MAC) != 0 && (len(i.MAC) != 6 || i.MAC[0]&1 != 0) {
		return Invalid("%.32s is no hardware address of a guest", i.MAC)
	}
	switch i.Binding {
	case Bridge:
		return nil
	case Masquerade:
		if len(i.MAC) == 0 {
			return Invalid("interface %.32q with masquerade has no hardware address", i.Name)
		}
		// The first and the second address are the gateway and the guest.
		if !i.IPv4.IsValid() || !i.IPv4.Addr().Is4() || i.IPv4.Bits() > 30 || !i.IPv6.IsValid() || !i.IPv6.Addr().Is6() ||
			i.IPv6.Addr().Is4In6() || i.IPv6.Addr().Zone() != "" || i.IPv6.Bits() > 126 {
			return Invalid("interface %.32q with masquerade has no private networks", i.Name)
		}
		return nil
	default:
		return Invalid("%.32q is no binding", fmt.Sprint(i.Binding))
	}
}

func checkPorts(list []PortRange) error {
	if len(list) > maxPorts {
		return Invalid("%d ranges of ports are forwarded, and at most %d are allowed", len(list), maxPorts)
	}
	for _, ports := range list {
		if ports.Protocol != "TCP" && ports.Protocol != "UDP" || ports.First < 1 || ports.Last < ports.First {
			return Invalid("%.16q %d to %d is no range of ports", ports.Protocol, ports.First, ports.Last)
		}
	}
	return nil
}
