// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package dhcp

import (
	"net"

	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/iana"
)

// reply6 returns the reply to a DHCPv6 message of the guest; nil means none.
func (l Lease) reply6(request *dhcpv6.Message, server dhcpv6.DUID) (*dhcpv6.Message, error) {
	if !l.IPv6.IsValid() || request.Options.ClientID() == nil {
		return nil, nil
	}
	if wanted := request.Options.ServerID(); wanted != nil && !wanted.Equal(server) {
		return nil, nil
	}
	modifiers := []dhcpv6.Modifier{dhcpv6.WithServerID(server)}
	if len(l.DNS6) > 0 {
		modifiers = append(modifiers, dhcpv6.WithDNS(toIPs(l.DNS6)...))
	}
	if len(l.DNS.Search) > 0 {
		modifiers = append(modifiers, dhcpv6.WithDomainSearchList(l.DNS.Search...))
	}
	if request.Type() != dhcpv6.MessageTypeInformationRequest {
		for _, association := range request.Options.IANA() {
			modifiers = append(modifiers, dhcpv6.WithOption(l.association(association.IaId)))
		}
	}
	switch request.Type() {
	case dhcpv6.MessageTypeSolicit:
		if request.GetOneOption(dhcpv6.OptionRapidCommit) != nil {
			modifiers = append(modifiers, dhcpv6.WithRapidCommit)
			return dhcpv6.NewReplyFromMessage(request, modifiers...)
		}
		return dhcpv6.NewAdvertiseFromSolicit(request, modifiers...)
	case dhcpv6.MessageTypeRequest, dhcpv6.MessageTypeConfirm, dhcpv6.MessageTypeRenew, dhcpv6.MessageTypeRebind,
		dhcpv6.MessageTypeRelease, dhcpv6.MessageTypeInformationRequest:
		return dhcpv6.NewReplyFromMessage(request, modifiers...)
	default:
		return nil, nil
	}
}

func (l Lease) association(id [4]byte) *dhcpv6.OptIANA {
	out := &dhcpv6.OptIANA{IaId: id, T1: infinite, T2: infinite}
	out.Options.Add(&dhcpv6.OptIAAddress{
		IPv6Addr: l.IPv6.AsSlice(), PreferredLifetime: infinite, ValidLifetime: infinite,
	})
	return out
}

// serverID returns this server's DUID. It is derived from the bridge's address, so that it does not change with a restart.
func serverID(mac net.HardwareAddr) dhcpv6.DUID {
	return &dhcpv6.DUIDLL{HWType: iana.HWTypeEthernet, LinkLayerAddr: mac}
}
