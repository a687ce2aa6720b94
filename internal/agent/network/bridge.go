// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package network

import (
	"crypto/rand"
	"net"
	"net/netip"

	"github.com/vireo-project/vireo/internal/brokerapi/networkapi"
	"github.com/vireo-project/vireo/internal/launcherpod/podiface"
)

// bridgeAddress is the address of the launcher's DHCP server on a bridge that has no address in the guest's network.
// Source: KubeVirt.
var bridgeAddress = netip.MustParsePrefix("169.254.75.10/32")

// bridge replaces the Pod with the guest on its network: the Pod's interface becomes a port of a bridge whose other port
// is the guest's tap, and the guest gets the Pod's hardware address and, by DHCP, its IP addresses. A placeholder with the name
// of the Pod's interface keeps the addresses visible in the Pod; it is connected to nothing.
func (c *connector) bridge(planned *Interface) (networkapi.Link, error) {
	if err := c.displace(planned.PodInterface); err != nil {
		return networkapi.Link{}, err
	}
	pod := c.links[planned.PodInterface]
	if len(planned.MAC) == 0 {
		planned.MAC = pod.MAC
	}
	nic := podiface.Displaced(planned.PodInterface)
	c.removeAddresses(nic, pod)
	name := podiface.Bridge(planned.PodInterface)
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

// displace renames the Pod's interface and replaces it with a placeholder that has its addresses. After each step the next call can
// continue: the placeholder has all addresses before the interface loses any.
func (c *connector) displace(name string) error {
	placeholder := podiface.Placeholder(name)
	if !c.has(podiface.Displaced(name)) {
		original := c.links[name]
		// A bridge without ports: every kernel that can run a VM's Pod supports bridges.
		c.addBridge(placeholder, original.MAC, original.MTU)
		for _, address := range original.Addresses {
			// Without a route: it does not lead to the network.
			c.addAddress(placeholder, address, true)
		}
		c.rename(name, podiface.Displaced(name))
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
