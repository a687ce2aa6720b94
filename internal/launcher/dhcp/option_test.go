// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package dhcp

import (
	"bytes"
	"strings"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/vireo-project/vireo/internal/launcher/podnet"
)

func TestAddedOptions(t *testing.T) {
	interfaces := []Interface{{Name: "eth0", Binding: Masquerade, IPv4: prefix("10.0.2.0/24")}, {Name: "blue", Binding: Bridge}}
	boot := strings.Repeat("x", 255)
	flags := []string{"eth0,42,192.0.2.1+192.0.2.2", "eth0,66,tftp.example", "eth0,67," + boot, "eth0,240,a%00%24", "eth0,254,", "blue,224,b"}
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
