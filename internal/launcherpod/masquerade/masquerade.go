// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package masquerade parses the private networks between a guest and its Pod with the masquerade binding: vmNetworkCIDR
// and vmIPv6NetworkCIDR of a VMI's Pod network. Admission, virt-controller and virt-handler use it, so that all accept
// the same values; virt-launcher gets the canonical form.
package masquerade

import (
	"errors"
	"fmt"
	"net/netip"

	netutils "k8s.io/utils/net"
)

// The default networks. Source: KubeVirt.
var (
	DefaultIPv4 = netip.MustParsePrefix("10.0.2.0/24")
	DefaultIPv6 = netip.MustParsePrefix("fd10:0:2::/120")
)

// mappedBits is the length of the prefix of an IPv4-mapped IPv6 address.
const mappedBits = 96

// hostBits is how many bits a network needs for the addresses of the gateway and the guest.
const hostBits = 2

// IPv4 parses vmNetworkCIDR and returns the network with its host bits cleared. Empty means DefaultIPv4. Numbers with
// leading zeros are decimal, as in KubeVirt and in Go before 1.17: stored objects have them. An error says what the
// text should be.
func IPv4(text string) (netip.Prefix, error) {
	if text == "" {
		return DefaultIPv4, nil
	}
	prefix, err := parse(text)
	if err != nil || !prefix.Addr().Is4() {
		return netip.Prefix{}, errors.New("must be an IPv4 network, such as 10.0.2.0/24")
	}
	return prefix, checkRoom(prefix)
}

// IPv6 is IPv4 for vmIPv6NetworkCIDR and DefaultIPv6.
func IPv6(text string) (netip.Prefix, error) {
	if text == "" {
		return DefaultIPv6, nil
	}
	prefix, err := parse(text)
	if err != nil || !prefix.Addr().Is6() {
		return netip.Prefix{}, errors.New("must be an IPv6 network, such as fd10:0:2::/120")
	}
	return prefix, checkRoom(prefix)
}

func parse(text string) (netip.Prefix, error) {
	_, network, err := netutils.ParseCIDRSloppy(text)
	if err != nil {
		return netip.Prefix{}, err
	}
	address, ok := netip.AddrFromSlice(network.IP)
	bits, _ := network.Mask.Size()
	if !ok {
		return netip.Prefix{}, fmt.Errorf("%s is no address", network.IP)
	}
	if address.Is4In6() && bits >= mappedBits {
		address, bits = address.Unmap(), bits-mappedBits
	}
	return netip.PrefixFrom(address, bits), nil
}

func checkRoom(prefix netip.Prefix) error {
	if prefix.Bits() > prefix.Addr().BitLen()-hostBits {
		return fmt.Errorf("must have room for a gateway and a guest: a prefix of at most %d bits",
			prefix.Addr().BitLen()-hostBits)
	}
	return nil
}
