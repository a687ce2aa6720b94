// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package dhcp

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vireo-project/vireo/internal/launcher/podnet"
)

// Limits for the content of the Pod's resolv.conf. A DHCP option has at most 255 bytes (RFC 2132), and a resolver uses at most three
// servers (resolv.conf(5)).
const (
	maxServers     = 3
	maxSearchBytes = 200
)

// bridgeServer identifies the server if the bridge has no address in the guest's network. Source: KubeVirt.
var bridgeServer = netip.MustParseAddr("169.254.75.10")

// Lease is the configuration of one interface of the guest. There is one guest, so there is one lease.
type Lease struct {
	// Address is the guest's address with the length of its network's prefix; not valid without IPv4.
	Address netip.Prefix
	// Server identifies this server.
	Server netip.Addr
	// Router is the default gateway; not valid if there is none.
	Router netip.Addr
	// Routes are all routes, including the default one; empty if Router suffices.
	Routes []podnet.Route
	// DNS has the name servers of IPv4 and the search list.
	DNS podnet.DNS
	// MTU is the interface's MTU; 0 means unspecified.
	MTU int
	// Hostname is the guest's host name.
	Hostname string
	// IPv6 is the guest's IPv6 address; not valid without one.
	IPv6 netip.Addr
	// DNS6 are the name servers of IPv6.
	DNS6 []netip.Addr
	// Options are further options of DHCPv4.
	Options []Option
}

// newLease returns the lease for a guest's interface, given the Pod's interface.
func newLease(i Interface, podInterface string, snapshot *podnet.Snapshot) (Lease, error) {
	pod, ok := snapshot.Interfaces[podInterface]
	if !ok {
		return Lease{}, fmt.Errorf("the Pod had no interface %s when the launcher started", podInterface)
	}
	lease := Lease{MTU: pod.MTU, Hostname: snapshot.Hostname, Options: i.Options}
	lease.DNS.Search = capSearch(snapshot.DNS.Search)
	for _, server := range snapshot.DNS.Servers {
		switch {
		case server.Is4() && len(lease.DNS.Servers) < maxServers:
			lease.DNS.Servers = append(lease.DNS.Servers, server)
		case server.Is6() && len(lease.DNS6) < maxServers:
			lease.DNS6 = append(lease.DNS6, server)
		}
	}
	if i.Binding == Masquerade {
		lease.masquerade(i, pod)
	} else {
		lease.bridge(pod)
	}
	return lease, nil
}

func (l *Lease) masquerade(i Interface, pod podnet.Interface) {
	if i.IPv4.IsValid() {
		l.Address = netip.PrefixFrom(Guest(i.IPv4), i.IPv4.Bits())
		l.Server = Gateway(i.IPv4)
		l.Router = l.Server
	}
	if _, ok := pod.IPv6(); ok && i.IPv6.IsValid() {
		l.IPv6 = Guest(i.IPv6)
	}
}

func (l *Lease) bridge(pod podnet.Interface) {
	address, ok := pod.IPv4()
	if !ok {
		return // A network without IPv4: another DHCP server on it may serve the guest.
	}
	l.Address, l.Server = address, bridgeServer
	onlyDefault := true
	for _, route := range pod.Routes {
		if !route.Destination.Addr().Is4() {
			continue
		}
		l.Routes = append(l.Routes, route)
		if route.Destination.Bits() != 0 {
			onlyDefault = false
			continue
		}
		if route.Gateway.IsValid() && !l.Router.IsValid() {
			l.Router = route.Gateway
		}
		// A gateway outside of the network needs its own route, which only option 121 can contain.
		onlyDefault = onlyDefault && address.Masked().Contains(route.Gateway)
	}
	if onlyDefault {
		l.Routes = nil
	}
}

func capSearch(domains []string) []string {
	size := 0
	var out []string
	for _, domain := range domains {
		size += len(domain) + 2 // In the packet, each label has a length, and the name a terminator.
		if size > maxSearchBytes {
			break
		}
		out = append(out, domain)
	}
	return out
}

func toIPs(addresses []netip.Addr) []net.IP {
	out := make([]net.IP, 0, len(addresses))
	for _, address := range addresses {
		out = append(out, address.AsSlice())
	}
	return out
}
