// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package network

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/wire/brokerapi"
	"github.com/vireo-project/vireo/internal/wire/brokerapi/networkapi"
)

// natTable is the table's name in the families ip and ip6.
const natTable = "vireo"

// Limits of a Step with rules. A VMI may list some thousand ports, and each of a Pod's addresses has a rule for each of
// them.
const (
	maxRules    = 1024
	maxPorts    = 4096
	maxAllRules = 32768
)

// buffers is how much of a transaction and of the kernel's responses, one for each rule, is queued. Without it, 500
// rules are too many.
const buffers = 32 << 20

// installing is held while rules are installed, as thousands take some MiB. Only the number of rules that a Pod needs
// delays others.
var installing sync.Mutex

// chains are the chains of the table.
var chains = map[networkapi.Chain]nftables.Chain{
	networkapi.Guard: {Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookPrerouting,
		Priority: nftables.ChainPriorityRaw},
	networkapi.Prerouting: {Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPrerouting,
		Priority: nftables.ChainPriorityNATDest},
	networkapi.Output: {Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookOutput,
		Priority: nftables.ChainPriorityNATDest},
	networkapi.Postrouting: {Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPostrouting,
		Priority: nftables.ChainPriorityNATSource},
	networkapi.Apart: {Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookForward,
		Priority: nftables.ChainPriorityFilter},
}

func checkRules(s *networkapi.Step) error {
	if len(s.Rules) > maxRules || len(s.Ports) > maxPorts {
		return brokerapi.Invalid("%d rules for %d ranges of ports are too many", len(s.Rules), len(s.Ports))
	}
	all, err := 0, checkPorts(s.Ports)
	for i := range s.Rules {
		rule := &s.Rules[i]
		err = errors.Join(err, checkRule(rule), checkPorts(rule.Ports))
		if all += max(len(rule.Ports), 1); rule.Listed {
			all += len(s.Ports)
		}
	}
	if err == nil && all > maxAllRules {
		err = brokerapi.Invalid("%d rules are too many", all)
	}
	return err
}

func checkRule(r *networkapi.Rule) error {
	for _, name := range []string{r.In, r.Out} {
		if name != "" && CheckLinkName(name) != nil {
			return brokerapi.Invalid("%.32q is no link of a rule", name)
		}
	}
	for _, network := range []netip.Prefix{r.Source, r.Destination} {
		if network != (netip.Prefix{}) && !ofFamily(network.Addr(), r.IPv6) {
			return brokerapi.Invalid("%s is no network of a rule's family", network)
		}
	}
	if _, known := chains[r.Chain]; !known {
		return brokerapi.Invalid("%.32q is no chain", r.Chain)
	}
	switch r.Do {
	case networkapi.Drop, networkapi.Return, networkapi.Hide:
		return nil
	case networkapi.To, networkapi.From:
		if ofFamily(r.Target, r.IPv6) {
			return nil
		}
	}
	return brokerapi.Invalid("%.32q with %s is no action", r.Do, r.Target)
}

func ofFamily(address netip.Addr, ipv6 bool) bool {
	return address.IsValid() && address.Is6() == ipv6 && !address.Is4In6() && address.Zone() == ""
}

func checkPorts(list []networkapi.PortRange) error {
	for _, ports := range list {
		if ports.Protocol != "TCP" && ports.Protocol != "UDP" || ports.First < 1 || ports.Last < ports.First {
			return brokerapi.Invalid("%.16q %d to %d is no range of ports", ports.Protocol, ports.First, ports.Last)
		}
	}
	return nil
}

// translate installs the rules of each family that has some, unless they are installed. It does so in one transaction
// for a family, and every rule has the digest of all as a comment: a table with the digest is complete, and any other
// is replaced.
func translate(s *networkapi.Step) error {
	for family, ipv6 := range map[nftables.TableFamily]bool{nftables.TableFamilyIPv4: false,
		nftables.TableFamilyIPv6: true} {
		rules := slices.DeleteFunc(slices.Clone(s.Rules), func(r networkapi.Rule) bool { return r.IPv6 != ipv6 })
		if len(rules) == 0 {
			continue
		}
		if err := install(family, rules, s.Ports); err != nil {
			return fmt.Errorf("IPv6 %t: %w", ipv6, err)
		}
	}
	return nil
}

func install(family nftables.TableFamily, rules []networkapi.Rule, listed []networkapi.PortRange) error {
	text, err := json.Marshal([]any{rules, listed})
	if err != nil {
		return err
	}
	sum := sha256.Sum256(text)
	mark := userdata.AppendString(nil, userdata.TypeComment, fmt.Sprintf("%s %x", natTable, sum[:8]))
	conn, err := nftables.New(nftables.WithSockOptions(func(c *netlink.Conn) error {
		return errors.Join(c.SetWriteBuffer(buffers), c.SetReadBuffer(buffers))
	}))
	if err != nil {
		return err
	}
	installing.Lock()
	defer installing.Unlock()
	table := &nftables.Table{Family: family, Name: natTable}
	for name := range chains {
		present, err := conn.GetRules(table, &nftables.Chain{Name: string(name), Table: table})
		if err == nil && len(present) > 0 && string(present[0].UserData) == string(mark) {
			return nil
		}
	}
	conn.AddTable(table) // Otherwise DelTable fails if there is none.
	conn.DelTable(table)
	conn.AddTable(table)
	for name, chain := range chains {
		chain.Name, chain.Table = string(name), table
		conn.AddChain(&chain)
	}
	for i := range rules {
		rule := &rules[i]
		add := func(onPorts []expr.Any) {
			exprs := slices.Concat(matches(rule), onPorts, action(rule))
			conn.AddRule(&nftables.Rule{Table: table, Chain: &nftables.Chain{Name: string(rule.Chain), Table: table},
				Exprs: exprs, UserData: mark})
		}
		ports := rule.Ports
		if rule.Listed {
			ports = listed
		}
		for _, one := range ports {
			add(portsAre(one))
		}
		if len(ports) == 0 {
			add(nil)
		}
	}
	return conn.Flush()
}

// matches returns what a rule matches, apart from ports.
func matches(r *networkapi.Rule) []expr.Any {
	// Offsets of the addresses in the headers (RFC 791, RFC 8200).
	source, destination := uint32(12), uint32(16)
	if r.IPv6 {
		source, destination = 8, 24
	}
	return slices.Concat(linkIs(expr.MetaKeyIIFNAME, r.In), linkIs(expr.MetaKeyOIFNAME, r.Out),
		addressIn(r.Source, source), addressIn(r.Destination, destination))
}

func linkIs(key expr.MetaKey, name string) []expr.Any {
	if name == "" {
		return nil
	}
	padded := make([]byte, unix.IFNAMSIZ)
	copy(padded, name)
	return []expr.Any{&expr.Meta{Key: key, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: padded}}
}

func addressIn(network netip.Prefix, offset uint32) []expr.Any {
	if !network.IsValid() {
		return nil
	}
	mask := net.CIDRMask(network.Bits(), network.Addr().BitLen())
	size := uint32(len(mask))
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: size},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: size, Mask: mask, Xor: make([]byte, size)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: network.Masked().Addr().AsSlice()},
	}
}

func portsAre(ports networkapi.PortRange) []expr.Any {
	protocol := byte(unix.IPPROTO_TCP)
	if ports.Protocol == "UDP" {
		protocol = unix.IPPROTO_UDP
	}
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{protocol}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Range{
			Op: expr.CmpOpEq, Register: 1,
			FromData: binary.BigEndian.AppendUint16(nil, ports.First), ToData: binary.BigEndian.AppendUint16(nil, ports.Last),
		},
	}
}

// action returns what a rule does.
func action(r *networkapi.Rule) []expr.Any {
	kind := expr.NATTypeDestNAT
	switch r.Do {
	case networkapi.Drop:
		return []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}}
	case networkapi.Return:
		return []expr.Any{&expr.Verdict{Kind: expr.VerdictReturn}}
	case networkapi.Hide:
		return []expr.Any{&expr.Masq{}}
	case networkapi.From:
		kind = expr.NATTypeSourceNAT
	case networkapi.To:
	}
	family := uint32(unix.NFPROTO_IPV4)
	if r.IPv6 {
		family = unix.NFPROTO_IPV6
	}
	return []expr.Any{
		&expr.Immediate{Register: 1, Data: r.Target.AsSlice()},
		&expr.NAT{Type: kind, Family: family, RegAddrMin: 1},
	}
}
