// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package network

import (
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vireo-project/vireo/internal/brokerapi/networkapi"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/launcherpod/podiface"
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

// Connect returns what is to be done to connect a guest with a Pod's links, and the guest's interfaces by their names in the VMI. It is
// level-triggered: after any of the steps, another Connect with the links as they are then completes them, and steps that were made before
// change nothing. The launcher must have recorded the Pod's network before, because the bridge binding removes the Pod's routes: make the
// steps once libvirtd's socket exists.
func Connect(plan Plan, links []networkapi.Link) ([]networkapi.Step, map[string]Connected, error) {
	c := newConnector(links)
	c.add(networkapi.Step{Do: networkapi.Set, Setting: networkapi.DHCPPorts})
	connected := map[string]Connected{}
	for _, planned := range plan.Interfaces {
		if !c.has(planned.PodInterface) && !c.has(podiface.Displaced(planned.PodInterface)) {
			return nil, nil, fmt.Errorf("connect the interface %s: %w", planned.Name, &MissingInterfaceError{Name: planned.PodInterface})
		}
		connect := c.masquerade
		if planned.Binding == Bridge {
			connect = c.bridge
		}
		pod, err := connect(&planned)
		if err != nil {
			return nil, nil, fmt.Errorf("connect the interface %s: %w", planned.Name, err)
		}
		connected[planned.Name] = Connected{Tap: podiface.Tap(planned.PodInterface), MAC: planned.MAC.String(), MTU: uint(pod.MTU)}
	}
	return c.steps, connected, nil
}

// Forward returns what is to be done to redirect the migration's ports to the guest too, after the steps of Connect with a plan for a
// migration target. Open connections are not affected, not even the one over which post-copy still transfers memory: only the first packet
// of a connection is translated.
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
	name := podiface.Tap(planned.PodInterface)
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
