// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package dhcp

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vireo-project/vireo/internal/launcher/podnet"
)

// Caps on what comes from the Pod's resolv.conf. An option of DHCP has at most 255 bytes (RFC 2132), a
// resolver takes three servers (resolv.conf(5)).
const (
	maxServers     = 3
	maxSearchBytes = 200
)

// bridgeServer identifies the server where the bridge has no address of the guest's network: KubeVirt's
// link-local address for it.
var bridgeServer = netip.MustParseAddr("169.254.75.10")

// Lease is everything that the guest is told about one interface. There is one guest, so there is one lease.
type Lease struct {
	// Address is the guest's address with the length of its network's prefix; not valid without IPv4.
	Address netip.Prefix
	// Server identifies this server.
	Server netip.Addr
	// Router is the default gateway; not valid if there is none.
	Router netip.Addr
	// Routes are all the routes, the default one too; empty if Router says it all.
	Routes []podnet.Route
	// DNS has the name servers of IPv4 and the search list.
	DNS podnet.DNS
	// MTU is the interface's MTU; 0 is not told.
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

// newLease is the lease on an interface of the guest behind an interface of the Pod.
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
		return // a network without IPv4: others on it may answer the guest
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
		// A gateway outside of the network needs its own route, which only option 121 can tell.
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
		size += len(domain) + 2 // in the packet: one length per label and an end
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
