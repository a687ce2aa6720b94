// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package dhcp

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/vireo-project/vireo/internal/launcher/podnet"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/launcherpod/podiface"
)

// Bindings that this server serves.
const (
	// Masquerade gives the guest an address of a private network behind the Pod's address.
	Masquerade = "masquerade"
	// Bridge gives the guest the address of the Pod's interface.
	Bridge = "bridge"
)

// InterfaceUsage is the help text of a flag that ParseInterface parses.
const InterfaceUsage = "an interface of the guest as NAME,BINDING[,IPv4 CIDR[,IPv6 CIDR]] (repeatable): NAME is the Pod's interface or\n" +
	"the VMI's network, BINDING is masquerade or bridge; masquerade needs a CIDR, whose first address is the gateway and second the guest"

// Interface is one interface of the guest.
type Interface struct {
	// Name is the Pod's interface, or the VMI's network that it belongs to.
	Name string
	// Binding is Masquerade or Bridge.
	Binding string
	// IPv4 and IPv6 are the guest's private networks with masquerade; IPv6 may be absent.
	IPv4, IPv6 netip.Prefix
	// Options are added to the replies of DHCPv4.
	Options []Option
}

// ParseInterface parses the format that InterfaceUsage describes.
func ParseInterface(text string) (Interface, error) {
	fields := strings.Split(text, ",")
	if len(fields) < 2 || len(fields) > 4 || fields[0] == "" {
		return Interface{}, errors.New("want NAME,BINDING[,IPv4 CIDR[,IPv6 CIDR]]")
	}
	out := Interface{Name: fields[0], Binding: fields[1]}
	if out.Binding != Masquerade && out.Binding != Bridge {
		return Interface{}, fmt.Errorf("the binding is %q: want %s or %s", out.Binding, Masquerade, Bridge)
	}
	for i, prefix := range []*netip.Prefix{&out.IPv4, &out.IPv6} {
		if i+2 >= len(fields) || fields[i+2] == "" {
			continue
		}
		parsed, err := netip.ParsePrefix(fields[i+2])
		if err != nil {
			return Interface{}, err
		}
		if parsed.Addr().Is4() != (i == 0) {
			return Interface{}, fmt.Errorf("%s is of the other IP family: IPv4 comes first", parsed)
		}
		if host := parsed.Addr().BitLen() - parsed.Bits(); out.Binding == Masquerade && host < 2 {
			return Interface{}, fmt.Errorf("%s has no room for a gateway and a guest: want a prefix of at most %d bits",
				parsed, parsed.Addr().BitLen()-2)
		}
		*prefix = parsed
	}
	if out.Binding == Masquerade && !out.IPv4.IsValid() && !out.IPv6.IsValid() {
		return Interface{}, errors.New("masquerade needs an IPv4 or an IPv6 CIDR")
	}
	return out, nil
}

// Gateway returns the first address of a private network, the bridge's.
func Gateway(network netip.Prefix) netip.Addr { return network.Masked().Addr().Next() }

// Guest returns the second address of a private network, the guest's.
func Guest(network netip.Prefix) netip.Addr { return Gateway(network).Next() }

// match returns the guest's interface and the name of the Pod's interface that belong to a bridge.
func match(bridge string, interfaces []Interface, snapshot *podnet.Snapshot) (Interface, string, bool) {
	known := func(name string) bool {
		_, ok := snapshot.Interfaces[name]
		return ok
	}
	pod, ok := podiface.OfBridge(bridge, known)
	if !ok {
		return Interface{}, "", false
	}
	for _, i := range interfaces {
		if i.Name == pod || podiface.Secondary(i.Name) == pod {
			return i, pod, true
		}
	}
	if pod != launcherpod.PrimaryInterface {
		return Interface{}, "", false
	}
	// The Pod network may have any name in the VMI; interfaces on other networks have a name derived from the network's.
	for _, i := range interfaces {
		if !known(i.Name) && !known(podiface.Secondary(i.Name)) {
			return i, pod, true
		}
	}
	return Interface{}, "", false
}
