// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package dhcp

import (
	"bytes"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv6"

	"github.com/vireo-project/vireo/internal/launcher/podnet"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

var (
	guestMAC = net.HardwareAddr{2, 0, 0, 0, 0, 7}
	byValue  = cmp.Options{
		cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
		cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	}
)

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// snapshotWith returns the snapshot of a Pod with one interface.
func snapshotWith(i podnet.Interface) *podnet.Snapshot {
	i.MTU = 1400
	return &podnet.Snapshot{
		Hostname: "fedora", Interfaces: map[string]podnet.Interface{"eth0": i},
		DNS: podnet.DNS{
			Servers: []netip.Addr{addr("10.96.0.10"), addr("fd96::a"), addr("10.0.0.1"), addr("10.0.0.2"), addr("10.0.0.3")},
			Search:  []string{"ns.svc.cluster.local", strings.Repeat("x", 63) + ".example", strings.Repeat("y", 190)},
		},
	}
}

func masqueradeLease(t *testing.T, pod podnet.Interface) Lease {
	t.Helper()
	i, err := ParseInterface("eth0,masquerade,10.0.2.0/24,fd10:0:2::/120")
	if err != nil {
		t.Fatal(err)
	}
	lease, err := newLease(i, "eth0", snapshotWith(pod))
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

func TestParseInterface(t *testing.T) {
	good := map[string]Interface{
		"eth0,masquerade,10.0.2.0/24":                {Name: "eth0", Binding: Masquerade, IPv4: prefix("10.0.2.0/24")},
		"eth0,masquerade,10.0.2.0/24,fd10:0:2::/120": {Name: "eth0", Binding: Masquerade, IPv4: prefix("10.0.2.0/24"), IPv6: prefix("fd10:0:2::/120")},
		"eth0,masquerade,,fd10:0:2::/120":            {Name: "eth0", Binding: Masquerade, IPv6: prefix("fd10:0:2::/120")},
		"blue,bridge":                                {Name: "blue", Binding: Bridge},
		"blue,bridge,":                               {Name: "blue", Binding: Bridge},
	}
	for text, want := range good {
		got, err := ParseInterface(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
		}
		if diff := cmp.Diff(want, got, byValue); diff != "" {
			t.Errorf("%s: %s", text, diff)
		}
	}
	for _, text := range []string{
		"", "eth0", ",bridge", "eth0,sriov", "eth0,masquerade", "eth0,masquerade,10.0.2.0/31", "eth0,masquerade,10.0.2.0",
		"eth0,masquerade,fd10::/120", "eth0,masquerade,10.0.2.0/24,10.0.3.0/24", "a,bridge,1.0.0.0/8,fd::/8,x",
	} {
		if _, err := ParseInterface(text); err == nil {
			t.Errorf("%q was accepted", text)
		}
	}
}

func TestMatch(t *testing.T) {
	secondary := launcherpod.SecondaryInterface("blue")
	snapshot := &podnet.Snapshot{Interfaces: map[string]podnet.Interface{"eth0": {}, secondary: {}}}
	interfaces := []Interface{{Name: "blue", Binding: Bridge}, {Name: "default", Binding: Masquerade}}
	cases := map[string]string{"k6t-eth0": "default", launcherpod.Bridge(secondary): "blue", "k6t-other": "", "br0": "",
		"k6t-": ""}
	for bridge, want := range cases {
		got, _, ok := match(bridge, interfaces, snapshot)
		if got.Name != want || ok != (want != "") {
			t.Errorf("%s: got %q and %t, want %q", bridge, got.Name, ok, want)
		}
	}
}

func TestLeases(t *testing.T) {
	masqueraded := masqueradeLease(t,
		podnet.Interface{Addresses: []netip.Prefix{prefix("10.1.0.5/24"), prefix("fd01::5/64")}})
	shared := Lease{
		MTU: 1400, Hostname: "fedora", DNS6: []netip.Addr{addr("fd96::a")},
		DNS: podnet.DNS{
			Servers: []netip.Addr{addr("10.96.0.10"), addr("10.0.0.1"), addr("10.0.0.2")},
			Search:  []string{"ns.svc.cluster.local", strings.Repeat("x", 63) + ".example"},
		},
	}
	want := shared
	want.Address, want.Server, want.Router, want.IPv6 = prefix("10.0.2.2/24"), addr("10.0.2.1"), addr("10.0.2.1"),
		addr("fd10:0:2::2")
	if diff := cmp.Diff(want, masqueraded, byValue); diff != "" {
		t.Errorf("masquerade: %s", diff)
	}
	if lease := masqueradeLease(t,
		podnet.Interface{Addresses: []netip.Prefix{prefix("10.1.0.5/24")}}); lease.IPv6.IsValid() {
		t.Error("a Pod without IPv6 offers it")
	}

	simple := []podnet.Route{{Destination: prefix("0.0.0.0/0"), Gateway: addr("10.1.0.1")},
		{Destination: prefix("::/0"), Gateway: addr("fd01::1")}}
	outside := []podnet.Route{{Destination: prefix("169.254.1.1/32")},
		{Destination: prefix("0.0.0.0/0"), Gateway: addr("169.254.1.1")}}
	cases := map[string]struct {
		pod    podnet.Interface
		router string
		routes []podnet.Route
	}{
		"one gateway":             {podnet.Interface{Addresses: []netip.Prefix{prefix("10.1.0.5/24")}, Routes: simple}, "10.1.0.1", nil},
		"a gateway outside":       {podnet.Interface{Addresses: []netip.Prefix{prefix("10.1.0.5/32")}, Routes: outside}, "169.254.1.1", outside},
		"a gateway outside, bare": {podnet.Interface{Addresses: []netip.Prefix{prefix("10.1.0.5/32")}, Routes: outside[1:]}, "169.254.1.1", outside[1:]},
		"no gateway":              {podnet.Interface{Addresses: []netip.Prefix{prefix("10.1.0.5/24")}}, "invalid IP", nil},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			lease, err := newLease(Interface{Name: "eth0", Binding: Bridge}, "eth0", snapshotWith(c.pod))
			if err != nil {
				t.Fatal(err)
			}
			if lease.Address != c.pod.Addresses[0] || lease.Server != bridgeServer || lease.Router.String() != c.router {
				t.Errorf("got %+v", lease)
			}
			if diff := cmp.Diff(c.routes, lease.Routes, byValue); diff != "" {
				t.Error(diff)
			}
		})
	}
	if _, err := newLease(Interface{}, "eth9", snapshotWith(podnet.Interface{})); err == nil {
		t.Error("a lease on an interface that does not exist")
	}
}

func TestReply(t *testing.T) {
	lease := masqueradeLease(t, podnet.Interface{})
	lease.Routes = []podnet.Route{{Destination: prefix("169.254.1.1/32")},
		{Destination: prefix("0.0.0.0/0"), Gateway: addr("169.254.1.1")}}
	request := func(kind dhcpv4.MessageType, more ...dhcpv4.Modifier) *dhcpv4.DHCPv4 {
		packet, err := dhcpv4.New(
			append([]dhcpv4.Modifier{dhcpv4.WithMessageType(kind), dhcpv4.WithHwAddr(guestMAC)}, more...)...)
		if err != nil {
			t.Fatal(err)
		}
		return packet
	}
	ip := net.ParseIP
	wanted := func(s string) dhcpv4.Modifier { return dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(ip(s))) }
	server := func(s string) dhcpv4.Modifier { return dhcpv4.WithOption(dhcpv4.OptServerIdentifier(ip(s))) }
	none := dhcpv4.MessageTypeNone
	cases := map[string]struct {
		request *dhcpv4.DHCPv4
		want    dhcpv4.MessageType
		address string
	}{
		"discover":        {request(dhcpv4.MessageTypeDiscover), dhcpv4.MessageTypeOffer, "10.0.2.2"},
		"request":         {request(dhcpv4.MessageTypeRequest, wanted("10.0.2.2"), server("10.0.2.1")), dhcpv4.MessageTypeAck, "10.0.2.2"},
		"renewal":         {request(dhcpv4.MessageTypeRequest, dhcpv4.WithClientIP(ip("10.0.2.2"))), dhcpv4.MessageTypeAck, "10.0.2.2"},
		"other address":   {request(dhcpv4.MessageTypeRequest, wanted("192.168.1.7")), dhcpv4.MessageTypeNak, "0.0.0.0"},
		"old address":     {request(dhcpv4.MessageTypeRequest, dhcpv4.WithClientIP(ip("192.168.1.7"))), dhcpv4.MessageTypeNak, "0.0.0.0"},
		"other server":    {request(dhcpv4.MessageTypeRequest, server("192.168.1.1")), none, ""},
		"inform":          {request(dhcpv4.MessageTypeInform, dhcpv4.WithClientIP(ip("10.0.2.2"))), dhcpv4.MessageTypeAck, "0.0.0.0"},
		"release":         {request(dhcpv4.MessageTypeRelease), none, ""},
		"relayed":         {request(dhcpv4.MessageTypeDiscover, dhcpv4.WithRelay(ip("10.9.9.9"))), none, ""},
		"short address":   {request(dhcpv4.MessageTypeDiscover, dhcpv4.WithHwAddr(net.HardwareAddr{1})), none, ""},
		"another's reply": {request(dhcpv4.MessageTypeOffer, func(d *dhcpv4.DHCPv4) { d.OpCode = dhcpv4.OpcodeBootReply }), none, ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			reply, err := lease.reply(c.request)
			if err != nil {
				t.Fatal(err)
			}
			if reply == nil {
				if c.want != none {
					t.Error("no reply")
				}
				return
			}
			if reply.MessageType() != c.want || reply.YourIPAddr.String() != c.address ||
				!reply.ServerIdentifier().Equal(ip("10.0.2.1")) {
				t.Errorf("got %s", reply.Summary())
			}
		})
	}
	offer, err := lease.reply(request(dhcpv4.MessageTypeDiscover))
	if err != nil {
		t.Fatal(err)
	}
	if got := offer.ClasslessStaticRoute(); len(got) != 2 || !got[0].Router.Equal(net.IPv4zero) ||
		got[1].Router.String() != "169.254.1.1" {
		t.Errorf("the routes are %v", got)
	}
	if mtu := offer.Options.Get(dhcpv4.OptionInterfaceMTU); !bytes.Equal(mtu, []byte{0x05, 0x78}) {
		t.Errorf("the MTU is %v", mtu)
	}
	if offer.HostName() != "fedora" || len(offer.DNS()) != 3 || offer.DomainName() != "ns.svc.cluster.local" {
		t.Errorf("got %s", offer.Summary())
	}
	if got := destination(request(dhcpv4.MessageTypeDiscover), offer); !got.IP.Equal(net.IPv4bcast) {
		t.Errorf("the offer goes to %s", got)
	}
}

func TestReply6(t *testing.T) {
	lease := masqueradeLease(t, podnet.Interface{Addresses: []netip.Prefix{prefix("fd01::5/64")}})
	id := serverID(net.HardwareAddr{2, 0, 0, 0, 0, 0})
	solicit, err := dhcpv6.NewSolicit(guestMAC)
	if err != nil {
		t.Fatal(err)
	}
	advertise, err := lease.reply6(solicit, id)
	if err != nil || advertise.Type() != dhcpv6.MessageTypeAdvertise {
		t.Fatalf("got %v, %v", advertise, err)
	}
	request, err := dhcpv6.NewRequestFromAdvertise(advertise)
	if err != nil {
		t.Fatal(err)
	}
	reply, err := lease.reply6(request, id)
	if err != nil || reply.Type() != dhcpv6.MessageTypeReply {
		t.Fatalf("got %v, %v", reply, err)
	}
	if got := reply.Options.OneIANA().Options.OneAddress().IPv6Addr.String(); got != "fd10:0:2::2" {
		t.Errorf("the guest gets %s", got)
	}
	if got := reply.Options.DNS(); len(got) != 1 || got[0].String() != "fd96::a" {
		t.Errorf("the name servers are %v", got)
	}
	other := serverID(net.HardwareAddr{2, 0, 0, 0, 0, 9})
	if reply, err := lease.reply6(request, other); reply != nil || err != nil {
		t.Errorf("a reply to a request to another server: %v, %v", reply, err)
	}
}

// maxReply is the longest packet that all clients accept. Source: RFC 2131, 2 (576 bytes for the whole datagram), and
// for DHCPv6 the least MTU of IPv6 (RFC 8200, 5).
const maxReply = 1280

// FuzzReply checks that, whatever a guest sends, a reply has a bounded length and is addressed to that guest, or there
// is none.
func FuzzReply(f *testing.F) {
	lease := Lease{Address: prefix("10.0.2.2/24"), Server: addr("10.0.2.1"), Router: addr("10.0.2.1"),
		IPv6: addr("fd10::2")}
	if discover, err := dhcpv4.NewDiscovery(guestMAC); err == nil {
		f.Add(discover.ToBytes())
	}
	if solicit, err := dhcpv6.NewSolicit(guestMAC); err == nil {
		f.Add(solicit.ToBytes())
	}
	f.Fuzz(func(t *testing.T, packet []byte) {
		if request, err := dhcpv4.FromBytes(packet); err == nil {
			if reply, err := lease.reply(request); err == nil && reply != nil {
				again, err := dhcpv4.FromBytes(reply.ToBytes())
				if err != nil || again.TransactionID != request.TransactionID || len(reply.ToBytes()) > maxReply {
					t.Errorf("a reply of %d bytes: %v (%v)", len(reply.ToBytes()), again, err)
				}
			}
		}
		if request, err := dhcpv6.MessageFromBytes(packet); err == nil {
			if reply, err := lease.reply6(request, serverID(guestMAC)); err == nil && reply != nil {
				again, err := dhcpv6.MessageFromBytes(reply.ToBytes())
				if err != nil || again.TransactionID != request.TransactionID || len(reply.ToBytes()) > len(packet)+maxReply {
					t.Errorf("a reply of %d bytes to %d: %v (%v)", len(reply.ToBytes()), len(packet), again, err)
				}
			}
		}
	})
}

func TestAddedOptions(t *testing.T) {
	interfaces := []Interface{{Name: "eth0", Binding: Masquerade, IPv4: prefix("10.0.2.0/24")},
		{Name: "blue", Binding: Bridge}}
	boot := strings.Repeat("x", 255)
	flags := []string{"eth0,42,192.0.2.1+192.0.2.2", "eth0,66,tftp.example", "eth0,67," + boot, "eth0,240,a%00%24",
		"eth0,254,", "blue,224,b"}
	if err := AddOptions(interfaces, flags); err != nil {
		t.Fatal(err)
	}
	lease, err := newLease(interfaces[0], "eth0", snapshotWith(podnet.Interface{}))
	if err != nil {
		t.Fatal(err)
	}
	discover, err := dhcpv4.NewDiscovery(guestMAC)
	if err != nil {
		t.Fatal(err)
	}
	offer, err := lease.reply(discover)
	if err != nil {
		t.Fatal(err)
	}
	// The encoded reply, as the guest receives it.
	got, err := dhcpv4.FromBytes(offer.ToBytes())
	if err != nil {
		t.Fatal(err)
	}
	for code, want := range map[uint8]string{
		42: "\xc0\x00\x02\x01\xc0\x00\x02\x02", 66: "tftp.example", 67: boot, 240: "a\x00$", 254: "",
	} {
		option := dhcpv4.GenericOptionCode(code)
		if !got.Options.Has(option) || !bytes.Equal(got.Options.Get(option), []byte(want)) {
			t.Errorf("option %d is %q, want %q", code, got.Options.Get(option), want)
		}
	}
	if got.Options.Has(dhcpv4.GenericOptionCode(224)) {
		t.Error("the reply has another interface's option")
	}
	if got.YourIPAddr.String() != "10.0.2.2" || len(got.Router()) != 1 {
		t.Errorf("the rest of the lease is lost: %s", got.Summary())
	}
}

func TestAddOptionsRejects(t *testing.T) {
	for flag, want := range map[string]string{
		"red,67,x":                               "no --interface red",
		"eth0,67":                                "want INTERFACE",
		"eth0,42,::1":                            "no IPv4 address",
		"eth0,42,192.0.2.300":                    "no IPv4 address",
		"eth0,240," + strings.Repeat("%00", 256): "256 bytes",
	} {
		err := AddOptions([]Interface{{Name: "eth0"}}, []string{flag})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.20q: got %v, want an error with %q", flag, err, want)
		}
	}
}
