// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package network

import (
	"crypto/rand"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/wire/brokerapi/networkapi"
)

// Connected is an interface of the guest that is connected to the Pod's network.
type Connected struct {
	// Tap is the name of its tap.
	Tap string
	// MAC is its hardware address.
	MAC string
	// MTU is the MTU of the Pod's interface.
	MTU uint
}

// MissingInterfaceError means that the Pod has no interface of a name.
type MissingInterfaceError struct{ Name string }

// Error names the component that should have created the interface.
func (e *MissingInterfaceError) Error() string {
	if e.Name == launcherpod.PrimaryInterface {
		return fmt.Sprintf("the Pod has no interface %s: check the cluster's network plugin on this node", e.Name)
	}
	return fmt.Sprintf("the Pod has no interface %s: Multus has not attached this network to it. Install Multus on the node, "+
		"or read the Pod's events, and start the VM again", e.Name)
}

// Connect returns what is to be done to connect a guest with a Pod's links, and the guest's interfaces by their names
// in the VMI. It is level-triggered: after any of the steps, another Connect with the links as they are then completes
// them, and steps that were made before change nothing. The launcher must have recorded the Pod's network before,
// because the bridge binding removes the Pod's routes: make the steps once libvirtd's socket exists.
func Connect(plan Plan, links []networkapi.Link) ([]networkapi.Step, map[string]Connected, error) {
	c := newConnector(links)
	c.add(networkapi.Step{Do: networkapi.Set, Setting: networkapi.DHCPPorts})
	connected := map[string]Connected{}
	for _, planned := range plan.Interfaces {
		if !c.has(planned.PodInterface) && !c.has(launcherpod.Displaced(planned.PodInterface)) {
			return nil, nil, fmt.Errorf("connect the interface %s: %w", planned.Name,
				&MissingInterfaceError{Name: planned.PodInterface})
		}
		connect := c.masquerade
		if planned.Binding == Bridge {
			connect = c.bridge
		}
		pod, err := connect(&planned)
		if err != nil {
			return nil, nil, fmt.Errorf("connect the interface %s: %w", planned.Name, err)
		}
		connected[planned.Name] = Connected{Tap: launcherpod.Tap(planned.PodInterface), MAC: planned.MAC.String(),
			MTU: uint(pod.MTU)}
	}
	return c.steps, connected, nil
}

// Forward returns what is to be done to redirect the migration's ports to the guest too, after the steps of Connect
// with a plan for a migration target. Open connections are not affected, not even the one over which post-copy still
// transfers memory: only the first packet of a connection is translated.
func Forward(plan Plan, links []networkapi.Link) ([]networkapi.Step, error) {
	c := newConnector(links)
	for i := range plan.Interfaces {
		planned := &plan.Interfaces[i]
		if planned.Binding != Masquerade {
			continue
		}
		if !c.has(planned.PodInterface) {
			return nil, &MissingInterfaceError{Name: planned.PodInterface}
		}
		c.translate(planned, c.links[planned.PodInterface])
	}
	return c.steps, nil
}

// connector collects the steps.
type connector struct {
	// links are the Pod's links as they are after the steps, by their names.
	links map[string]networkapi.Link
	steps []networkapi.Step
}

func newConnector(links []networkapi.Link) *connector {
	c := &connector{links: map[string]networkapi.Link{}}
	for _, link := range links {
		c.links[link.Name] = link
	}
	return c
}

func (c *connector) has(name string) bool {
	_, found := c.links[name]
	return found
}

func (c *connector) add(step networkapi.Step) { c.steps = append(c.steps, step) }

func (c *connector) addBridge(name string, mac net.HardwareAddr, mtu int) {
	if c.has(name) {
		return
	}
	c.add(networkapi.Step{Do: networkapi.AddBridge, Link: name, MAC: mac, MTU: mtu})
	c.links[name] = networkapi.Link{Name: name, MAC: mac, MTU: mtu}
}

func (c *connector) addAddress(name string, address netip.Prefix, noRoute bool) {
	link := c.links[name]
	if slices.Contains(link.Addresses, address) {
		return
	}
	c.add(networkapi.Step{Do: networkapi.AddAddress, Link: name, Address: address, NoRoute: noRoute})
	link.Addresses = append(slices.Clone(link.Addresses), address)
	c.links[name] = link
}

func (c *connector) rename(from, to string) {
	c.add(networkapi.Step{Do: networkapi.Rename, Link: from, Other: to})
	link := c.links[from]
	delete(c.links, from)
	link.Name = to
	c.links[to] = link
}

func (c *connector) setUp(name string) { c.add(networkapi.Step{Do: networkapi.SetUp, Link: name}) }

func (c *connector) set(which networkapi.Setting, link string) {
	c.add(networkapi.Step{Do: networkapi.Set, Setting: which, Link: link})
}

// attach attaches a link to a bridge and sets it up.
func (c *connector) attach(name, bridge string, mtu int) {
	c.add(networkapi.Step{Do: networkapi.Attach, Link: name, Other: bridge, MTU: mtu})
	c.setUp(name)
}

// addTap adds the guest's tap to a bridge.
func (c *connector) addTap(planned *Interface, bridge string, mtu int) {
	name := launcherpod.Tap(planned.PodInterface)
	c.add(networkapi.Step{Do: networkapi.AddTap, Link: name, MultiQueue: planned.MultiQueue})
	c.attach(name, bridge, mtu)
}

func has(link networkapi.Link, family func(netip.Addr) bool) bool {
	return slices.ContainsFunc(link.Addresses, func(address netip.Prefix) bool { return family(address.Addr()) })
}

// gateway returns the bridge's address in a private network, the first one.
func gateway(network netip.Prefix) netip.Prefix {
	return netip.PrefixFrom(network.Masked().Addr().Next(), network.Bits())
}

// guest returns the guest's address in a private network, the second one. The launcher assigns it by DHCP.
func guest(network netip.Prefix) netip.Addr { return gateway(network).Addr().Next() }

// bridgeAddress is the address of the launcher's DHCP server on a bridge that has no address in the guest's network.
// Source: KubeVirt.
var bridgeAddress = netip.MustParsePrefix("169.254.75.10/32")

// bridge replaces the Pod with the guest on its network: the Pod's interface becomes a port of a bridge whose other
// port is the guest's tap, and the guest gets the Pod's hardware address and, by DHCP, its IP addresses. A placeholder
// with the name of the Pod's interface keeps the addresses visible in the Pod; it is connected to nothing.
func (c *connector) bridge(planned *Interface) (networkapi.Link, error) {
	if err := c.displace(planned.PodInterface); err != nil {
		return networkapi.Link{}, err
	}
	pod := c.links[planned.PodInterface]
	if len(planned.MAC) == 0 {
		planned.MAC = pod.MAC
	}
	nic := launcherpod.Displaced(planned.PodInterface)
	c.removeAddresses(nic, pod)
	name := launcherpod.Bridge(planned.PodInterface)
	c.addBridge(name, randomMAC(), pod.MTU)
	// Only the guest responds to ARP for the address that the placeholder also has.
	c.set(networkapi.IgnoreARP, name)
	c.addAddress(name, bridgeAddress, false)
	c.setUp(name)
	c.addTap(planned, name, pod.MTU)
	c.attach(nic, name, pod.MTU)
	// All traffic of the guest goes to the network anyway, and the launcher recognizes the guest's DHCP requests by it.
	c.add(networkapi.Step{Do: networkapi.StopLearning, Link: nic})
	return pod, nil
}

// displace renames the Pod's interface and replaces it with a placeholder that has its addresses. After each step the
// next call can continue: the placeholder has all addresses before the interface loses any.
func (c *connector) displace(name string) error {
	placeholder := launcherpod.Placeholder(name)
	if !c.has(launcherpod.Displaced(name)) {
		original := c.links[name]
		// A bridge without ports: every kernel that can run a VM's Pod supports bridges.
		c.addBridge(placeholder, original.MAC, original.MTU)
		for _, address := range original.Addresses {
			// Without a route: it does not lead to the network.
			c.addAddress(placeholder, address, true)
		}
		c.rename(name, launcherpod.Displaced(name))
	}
	if !c.has(name) {
		if !c.has(placeholder) {
			return &MissingInterfaceError{Name: name}
		}
		c.rename(placeholder, name)
	}
	c.setUp(name)
	return nil
}

// removeAddresses removes the Pod's hardware and IP addresses from its displaced interface: the guest has them now.
func (c *connector) removeAddresses(name string, placeholder networkapi.Link) {
	nic := c.links[name]
	for _, address := range nic.Addresses {
		c.add(networkapi.Step{Do: networkapi.RemoveAddress, Link: name, Address: address})
	}
	if nic.MAC.String() == placeholder.MAC.String() {
		c.add(networkapi.Step{Do: networkapi.SetMAC, Link: name, MAC: randomMAC()})
	}
}

// randomMAC returns a locally administered unicast address.
func randomMAC() net.HardwareAddr {
	mac := make(net.HardwareAddr, 6)
	_, _ = rand.Read(mac) // never fails
	mac[0] = mac[0]&^0x01 | 0x02
	return mac
}

// sidecarPorts are Envoy's own. Source: https://istio.io/latest/docs/ops/deployment/application-requirements;
// KubeVirt's list.
var sidecarPorts = []uint16{15000, 15001, 15004, 15006, 15008, 15009, 15020, 15021, 15053, 15090}

// localhost is the source address of connections between Envoy and the other processes of the sidecar.
var localhost = netip.MustParsePrefix("127.0.0.1/32")

// bypassingSidecar returns those of the forwarded ports whose connections do not go through Envoy: SSH, as in KubeVirt,
// and the ports of migrations, which the Pod's annotations exclude from Envoy.
func bypassingSidecar(forwarded []networkapi.PortRange) []networkapi.PortRange {
	bypassing := []networkapi.PortRange{{Protocol: "TCP", First: 22, Last: 22}, migrationPorts}
	if len(forwarded) == 0 {
		return bypassing
	}
	var out []networkapi.PortRange
	for _, p := range bypassing {
		for _, f := range forwarded {
			if p.Protocol == f.Protocol && p.First <= f.Last && f.First <= p.Last {
				out = append(out, networkapi.PortRange{Protocol: p.Protocol, First: max(p.First, f.First),
					Last: min(p.Last, f.Last)})
			}
		}
	}
	return slices.Compact(out)
}

// sidecarToGuest redirects Envoy's connections to the Pod's address to the guest, but for those to the sidecar's own
// ports.
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
