// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package masquerade_test

import (
	"net/netip"
	"testing"

	"github.com/vireo-project/vireo/internal/launcher/dhcp"
	"github.com/vireo-project/vireo/internal/launcherpod/masquerade"
)

// FuzzCIDRs checks that any network in a spec is rejected, or parsed to a canonical form that contains the gateway and
// the guest of virt-launcher and virt-handler.
func FuzzCIDRs(f *testing.F) {
	for _, text := range []string{"", "10.0.2.0/24", "010.10.010.0/024", "::ffff:10.1.0.0/112", "::ffff:10.1.0.0/95",
		"FD00:0:0::1/64", "0.0.0.0/0", "::/0",
		"255.255.255.252/30", "fe80::1%eth0/64"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		ipv4, err4 := masquerade.IPv4(text)
		ipv6, err6 := masquerade.IPv6(text)
		if text != "" && err4 == nil && err6 == nil {
			t.Errorf("%q is %s and %s", text, ipv4, ipv6)
		}
		if err4 == nil {
			expectNetwork(t, text, ipv4, masquerade.IPv4, "eth0,masquerade,"+ipv4.String())
		}
		if err6 == nil {
			expectNetwork(t, text, ipv6, masquerade.IPv6, "eth0,masquerade,,"+ipv6.String())
		}
	})
}

func expectNetwork(
	t *testing.T, text string, network netip.Prefix, read func(string) (netip.Prefix, error), argument string,
) {
	t.Helper()
	if again, err := read(network.String()); err != nil || again != network || network != network.Masked() {
		t.Errorf("%q is %s, and that is %s (%v)", text, network, again, err)
	}
	if _, err := dhcp.ParseInterface(argument); err != nil {
		t.Errorf("virt-launcher rejects %s: %v", argument, err)
	}
	gateway, guest := dhcp.Gateway(network), dhcp.Guest(network)
	if !network.Contains(gateway) || !network.Contains(guest) || gateway == guest || gateway == network.Addr() {
		t.Errorf("%q: the gateway %s and the guest %s are not both in %s", text, gateway, guest, network)
	}
}
