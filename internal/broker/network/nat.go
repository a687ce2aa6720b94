// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package network

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/launcherpod/layout"
	"github.com/vireo-project/vireo/internal/launcherpod/podiface"
)

// natTable is the table's name in the families ip and ip6.
const natTable = "vireo"

var loopback = netip.MustParsePrefix("127.0.0.0/8")

// migrationPorts are not forwarded on a migration target until the guest runs there: the migration may use them.
var migrationPorts = PortRange{Protocol: "TCP", First: layout.FirstMigrationPort, Last: layout.LastMigrationPort}

// ruleset is the desired content of the table in one family.
type ruleset struct {
	family nftables.TableFamily
	chains []chain
}

type chain struct {
	name     string
	kind     nftables.ChainType
	hook     *nftables.ChainHook
	priority *nftables.ChainPriority
	rules    []rule
}

// rule is a list of matches and an action, with a text that identifies it.
type rule struct {
	text  string
	exprs []expr.Any
}

// ensureNAT creates the tables for the families of the Pod's addresses.
func ensureNAT(planned Interface, pod podState) error {
	if pod.hasIPv4() {
		if err := ensureRuleset(ipv4Rules(planned, pod)); err != nil {
			return fmt.Errorf("set up IPv4 translation: %w", err)
		}
	}
	if pod.hasIPv6() {
		if err := ensureRuleset(ipv6Rules(planned, pod)); err != nil {
			return fmt.Errorf("set up IPv6 translation: %w", err)
		}
	}
	return nil
}

func ipv4Rules(planned Interface, pod podState) ruleset {
	bridge := podiface.Bridge(planned.PodInterface)
	to := guest(planned.IPv4)
	set := ruleset{family: nftables.TableFamilyIPv4, chains: []chain{
		natChain("prerouting", nftables.ChainHookPrerouting, nftables.ChainPriorityNATDest, inbound(planned, pod, to)),
		// Probes and sidecars inside the Pod reach the guest at the Pod's loopback address.
		natChain("output", nftables.ChainHookOutput, nftables.ChainPriorityNATDest, append(
			sidecarToGuest(planned, pod, to),
			forward(planned, match("ip daddr 127.0.0.0/8", destinationIn(loopback)), to)...)),
		natChain("postrouting", nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource, append(
			outbound(planned, planned.IPv4),
			match("ip saddr 127.0.0.0/8", sourceIn(loopback)).and(match("oifname "+bridge, interfaceIs(expr.MetaKeyOIFNAME, bridge))).
				then("snat to "+gateway(planned.IPv4).Addr().String(), translate(expr.NATTypeSourceNAT, gateway(planned.IPv4).Addr())))),
		// route_localnet accepts loopback addresses on the bridge. This drops those that the guest sends.
		{
			name: "guard", kind: nftables.ChainTypeFilter, hook: nftables.ChainHookPrerouting, priority: nftables.ChainPriorityRaw,
			rules: []rule{match("iifname "+bridge, interfaceIs(expr.MetaKeyIIFNAME, bridge)).
				and(match("ip daddr 127.0.0.0/8", destinationIn(loopback))).then("drop", verdict(expr.VerdictDrop))},
		},
		isolateMigrationNetwork(),
	}}
	return set
}

func ipv6Rules(planned Interface, pod podState) ruleset {
	return ruleset{family: nftables.TableFamilyIPv6, chains: []chain{
		natChain("prerouting", nftables.ChainHookPrerouting, nftables.ChainPriorityNATDest, inbound(planned, pod, guest(planned.IPv6))),
		natChain("postrouting", nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource,
			outbound(planned, planned.IPv6)),
		isolateMigrationNetwork(),
	}}
}

// isolateMigrationNetwork blocks guests from the migration network. The Pod may have an interface there, and forwards.
func isolateMigrationNetwork() chain {
	return chain{
		name: "apart", kind: nftables.ChainTypeFilter, hook: nftables.ChainHookForward, priority: nftables.ChainPriorityFilter,
		rules: []rule{
			match("iifname "+podiface.Migration, interfaceIs(expr.MetaKeyIIFNAME, podiface.Migration)).then("drop", verdict(expr.VerdictDrop)),
			match("oifname "+podiface.Migration, interfaceIs(expr.MetaKeyOIFNAME, podiface.Migration)).then("drop", verdict(expr.VerdictDrop)),
		},
	}
}

func natChain(name string, hook *nftables.ChainHook, priority *nftables.ChainPriority, rules []rule) chain {
	return chain{name: name, kind: nftables.ChainTypeNAT, hook: hook, priority: priority, rules: rules}
}

// inbound redirects connections to the Pod's addresses to the guest. With a sidecar, they go to the sidecar.
func inbound(planned Interface, pod podState, to netip.Addr) []rule {
	if planned.Sidecar {
		if planned.Ports = bypassingSidecar(planned.Ports); len(planned.Ports) == 0 {
			return nil
		}
	}
	var rules []rule
	for _, address := range pod.addresses {
		if address.Addr().Is4() != to.Is4() {
			continue
		}
		host := netip.PrefixFrom(address.Addr(), address.Addr().BitLen())
		from := match("iifname "+planned.PodInterface, interfaceIs(expr.MetaKeyIIFNAME, planned.PodInterface)).
			and(match("daddr "+host.String(), destinationIn(host)))
		rules = append(rules, forward(planned, from, to)...)
	}
	return rules
}

// forward redirects matching connections to the guest: those to the listed ports, or all if none is listed.
func forward(planned Interface, from rule, to netip.Addr) []rule {
	var rules []rule
	target := "dnat to " + to.String()
	if planned.MigrationTarget {
		rules = append(rules, from.and(portMatch(migrationPorts)).then("return", verdict(expr.VerdictReturn)))
	}
	if len(planned.Ports) == 0 {
		return append(rules, from.then(target, translate(expr.NATTypeDestNAT, to)))
	}
	for _, ports := range planned.Ports {
		rules = append(rules, from.and(portMatch(ports)).then(target, translate(expr.NATTypeDestNAT, to)))
	}
	return rules
}

// outbound translates the guest's addresses to the Pod's.
func outbound(planned Interface, network netip.Prefix) []rule {
	return []rule{match("saddr "+network.String(), sourceIn(network)).
		and(match("oifname "+planned.PodInterface, interfaceIs(expr.MetaKeyOIFNAME, planned.PodInterface))).
		then("masquerade", []expr.Any{&expr.Masq{}})}
}

// digest returns a hash of a ruleset.
func (s ruleset) digest() string {
	var text strings.Builder
	for _, chain := range s.chains {
		text.WriteString("chain " + chain.name + "\n")
		for _, rule := range chain.rules {
			text.WriteString(rule.text + "\n")
		}
	}
	sum := sha256.Sum256([]byte(text.String()))
	return hex.EncodeToString(sum[:])[:16]
}

// ensureRuleset installs a ruleset unless it is installed. It does so in one transaction, and every rule has the digest of the
// ruleset as a comment: a table with the digest is complete, and any other is replaced.
func ensureRuleset(set ruleset) error {
	conn, err := nftables.New()
	if err != nil {
		return err
	}
	table := &nftables.Table{Family: set.family, Name: natTable}
	mark := userdata.AppendString(nil, userdata.TypeComment, natTable+" "+set.digest())
	if present(conn, table, set.firstRule(), mark) {
		return nil
	}
	conn.AddTable(table) // Otherwise DelTable fails if there is none.
	conn.DelTable(table)
	conn.AddTable(table)
	for _, wanted := range set.chains {
		added := conn.AddChain(&nftables.Chain{
			Name: wanted.name, Table: table, Type: wanted.kind, Hooknum: wanted.hook, Priority: wanted.priority,
		})
		for _, rule := range wanted.rules {
			conn.AddRule(&nftables.Rule{Table: table, Chain: added, Exprs: rule.exprs, UserData: mark})
		}
	}
	return conn.Flush()
}

// firstRule returns the name of the first chain that has a rule.
func (s ruleset) firstRule() string {
	at := slices.IndexFunc(s.chains, func(c chain) bool { return len(c.rules) > 0 })
	return s.chains[at].name
}

func present(conn *nftables.Conn, table *nftables.Table, chain string, mark []byte) bool {
	rules, err := conn.GetRules(table, &nftables.Chain{Name: chain, Table: table})
	if err != nil || len(rules) == 0 {
		return false // There is no such table or chain.
	}
	return string(rules[0].UserData) == string(mark)
}

func match(text string, exprs []expr.Any) rule { return rule{text: text, exprs: exprs} }

func (r rule) and(other rule) rule {
	return rule{text: r.text + " " + other.text, exprs: slices.Concat(r.exprs, other.exprs)}
}

func (r rule) then(text string, action []expr.Any) rule {
	return r.and(rule{text: text, exprs: action})
}

func interfaceIs(key expr.MetaKey, name string) []expr.Any {
	padded := make([]byte, unix.IFNAMSIZ)
	copy(padded, name)
	return []expr.Any{
		&expr.Meta{Key: key, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: padded},
	}
}

// Offsets of the addresses in the headers (RFC 791, RFC 8200).
func sourceIn(prefix netip.Prefix) []expr.Any { return addressIn(prefix, 12, 8) }

func destinationIn(prefix netip.Prefix) []expr.Any { return addressIn(prefix, 16, 24) }

func addressIn(prefix netip.Prefix, offset4, offset6 uint32) []expr.Any {
	offset, size := offset4, uint32(prefix.Addr().BitLen()/8)
	if prefix.Addr().Is6() {
		offset = offset6
	}
	exprs := []expr.Any{&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: size}}
	if prefix.Bits() < prefix.Addr().BitLen() {
		exprs = append(exprs, &expr.Bitwise{
			SourceRegister: 1, DestRegister: 1, Len: size, Mask: mask(prefix), Xor: make([]byte, size),
		})
	}
	return append(exprs, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: prefix.Masked().Addr().AsSlice()})
}

func mask(prefix netip.Prefix) []byte {
	out := make([]byte, prefix.Addr().BitLen()/8)
	for bit := range prefix.Bits() {
		out[bit/8] |= 0x80 >> (bit % 8)
	}
	return out
}

func portMatch(ports PortRange) rule {
	protocol := byte(unix.IPPROTO_TCP)
	if ports.Protocol == "UDP" {
		protocol = unix.IPPROTO_UDP
	}
	return match(fmt.Sprintf("%s dport %d-%d", ports.Protocol, ports.First, ports.Last), []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{protocol}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Range{Op: expr.CmpOpEq, Register: 1, FromData: bigEndian(ports.First), ToData: bigEndian(ports.Last)},
	})
}

func bigEndian(port uint16) []byte { return []byte{byte(port >> 8), byte(port)} }

func translate(kind expr.NATType, to netip.Addr) []expr.Any {
	family := uint32(unix.NFPROTO_IPV4)
	if to.Is6() {
		family = unix.NFPROTO_IPV6
	}
	return []expr.Any{
		&expr.Immediate{Register: 1, Data: to.AsSlice()},
		&expr.NAT{Type: kind, Family: family, RegAddrMin: 1},
	}
}

func verdict(kind expr.VerdictKind) []expr.Any { return []expr.Any{&expr.Verdict{Kind: kind}} }
