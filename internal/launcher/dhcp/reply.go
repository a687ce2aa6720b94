// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package dhcp

import (
	"math"
	"net"
	"net/netip"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/iana"
	"github.com/insomniacslk/dhcp/rfc1035label"

	"github.com/vireo-project/vireo/internal/launcher/podnet"
)

// infinite is the infinite lease time (RFC 2131, 3.3).
const infinite = math.MaxUint32 * time.Second

// reply returns the reply to a request of the guest; nil means none.
func (l Lease) reply(request *dhcpv4.DHCPv4) (*dhcpv4.DHCPv4, error) {
	if !l.isForUs(request) {
		return nil, nil
	}
	switch request.MessageType() {
	case dhcpv4.MessageTypeDiscover:
		return l.newReply(request, dhcpv4.MessageTypeOffer, l.Address.Addr())
	case dhcpv4.MessageTypeRequest:
		wanted, ok := netip.AddrFromSlice(request.RequestedIPAddress().To4())
		if !ok {
			wanted, ok = netip.AddrFromSlice(request.ClientIPAddr.To4())
		}
		if ok && !wanted.IsUnspecified() && wanted != l.Address.Addr() {
			return dhcpv4.NewReplyFromRequest(request,
				dhcpv4.WithMessageType(dhcpv4.MessageTypeNak),
				dhcpv4.WithOption(dhcpv4.OptServerIdentifier(l.Server.AsSlice())))
		}
		return l.newReply(request, dhcpv4.MessageTypeAck, l.Address.Addr())
	case dhcpv4.MessageTypeInform:
		return l.newReply(request, dhcpv4.MessageTypeAck, netip.IPv4Unspecified())
	default:
		return nil, nil // A release or a decline has no effect: only the guest can have the address.
	}
}

// isForUs reports whether a message is a request of an Ethernet client to this server.
func (l Lease) isForUs(request *dhcpv4.DHCPv4) bool {
	if !l.Address.IsValid() || request.OpCode != dhcpv4.OpcodeBootRequest {
		return false
	}
	if request.HWType != iana.HWTypeEthernet || len(request.ClientHWAddr) != 6 {
		return false
	}
	if !request.GatewayIPAddr.IsUnspecified() && request.GatewayIPAddr != nil {
		return false // It came through a relay: the guest has none.
	}
	server := request.ServerIdentifier()
	return server == nil || server.Equal(net.IP(l.Server.AsSlice()))
}

func (l Lease) newReply(request *dhcpv4.DHCPv4, kind dhcpv4.MessageType, address netip.Addr) (*dhcpv4.DHCPv4, error) {
	options := []dhcpv4.Modifier{
		dhcpv4.WithMessageType(kind),
		dhcpv4.WithYourIP(address.AsSlice()),
		dhcpv4.WithServerIP(l.Server.AsSlice()),
		dhcpv4.WithOption(dhcpv4.OptServerIdentifier(l.Server.AsSlice())),
		dhcpv4.WithNetmask(net.CIDRMask(l.Address.Bits(), 32)),
	}
	add := func(when bool, option func() dhcpv4.Option) {
		if when {
			options = append(options, dhcpv4.WithOption(option()))
		}
	}
	add(kind != dhcpv4.MessageTypeAck || !address.IsUnspecified(),
		func() dhcpv4.Option { return dhcpv4.OptIPAddressLeaseTime(infinite) })
	add(l.Router.IsValid(), func() dhcpv4.Option { return dhcpv4.OptRouter(l.Router.AsSlice()) })
	add(len(l.Routes) > 0, func() dhcpv4.Option { return dhcpv4.OptClasslessStaticRoute(toRoutes(l.Routes)...) })
	add(len(l.DNS.Servers) > 0, func() dhcpv4.Option { return dhcpv4.OptDNS(toIPs(l.DNS.Servers)...) })
	add(len(l.DNS.Search) > 0, func() dhcpv4.Option { return dhcpv4.OptDomainName(l.DNS.Search[0]) })
	add(len(l.DNS.Search) > 0, func() dhcpv4.Option {
		return dhcpv4.OptDomainSearch(&rfc1035label.Labels{Labels: l.DNS.Search})
	})
	add(l.Hostname != "", func() dhcpv4.Option { return dhcpv4.OptHostName(l.Hostname) })
	add(l.MTU > 0, func() dhcpv4.Option {
		return dhcpv4.OptGeneric(dhcpv4.OptionInterfaceMTU, []byte{byte(l.MTU >> 8), byte(l.MTU)})
	})
	for _, option := range l.Options {
		options = append(options, dhcpv4.WithGeneric(dhcpv4.GenericOptionCode(option.Code), option.Value))
	}
	return dhcpv4.NewReplyFromRequest(request, options...)
}

func toRoutes(routes []podnet.Route) []*dhcpv4.Route {
	out := make([]*dhcpv4.Route, 0, len(routes))
	for _, route := range routes {
		gateway := route.Gateway
		if !gateway.IsValid() {
			gateway = netip.IPv4Unspecified() // on the link (RFC 3442)
		}
		out = append(out, &dhcpv4.Route{
			Dest: &net.IPNet{
				IP:   route.Destination.Masked().Addr().AsSlice(),
				Mask: net.CIDRMask(route.Destination.Bits(), 32),
			},
			Router: gateway.AsSlice(),
		})
	}
	return out
}

// destination returns the address to which a reply is sent: the client's if it has one, otherwise the broadcast
// address.
func destination(request, reply *dhcpv4.DHCPv4) *net.UDPAddr {
	address := net.IPv4bcast
	if reply.MessageType() != dhcpv4.MessageTypeNak && request.ClientIPAddr != nil &&
		!request.ClientIPAddr.IsUnspecified() {
		address = request.ClientIPAddr
	}
	return &net.UDPAddr{IP: address, Port: dhcpv4.ClientPort}
}

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

// serverID returns this server's DUID. It is derived from the bridge's address, so that it does not change with a
// restart.
func serverID(mac net.HardwareAddr) dhcpv6.DUID {
	return &dhcpv6.DUIDLL{HWType: iana.HWTypeEthernet, LinkLayerAddr: mac}
}
