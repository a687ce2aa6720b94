// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"libvirt.org/go/libvirt"

	"github.com/vireo-project/vireo/internal/handler/hypervisor"
)

// maxStatusText is what hypervisor.Clean leaves of a text at most.
const maxStatusText = 256

func TestParseOSInfo(t *testing.T) {
	got, err := parseOSInfo(`{"return":{"id":"debian","name":"Debian GNU/Linux","pretty-name":"Debian GNU/Linux 13 (trixie)",
		"version":"13 (trixie)","version-id":"13","kernel-release":"6.12","kernel-version":"#1 SMP","machine":"x86_64","new":{}}}`)
	want := hypervisor.GuestOS{
		ID: "debian", Name: "Debian GNU/Linux", PrettyName: "Debian GNU/Linux 13 (trixie)", Version: "13 (trixie)",
		VersionID: "13", KernelRelease: "6.12", KernelVersion: "#1 SMP", Machine: "x86_64",
	}
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestOSInfoOfAHostileGuestIsCapped(t *testing.T) {
	evil, err := json.Marshal("\x1b[31m\n\u202e" + strings.Repeat("x", 4000))
	if err != nil {
		t.Fatal(err)
	}
	fields := []string{"id", "name", "pretty-name", "version", "version-id", "kernel-release", "kernel-version", "machine"}
	members := make([]string, 0, len(fields))
	for _, name := range fields {
		members = append(members, fmt.Sprintf("%q:%s", name, evil))
	}
	got, err := parseOSInfo(`{"return":{` + strings.Join(members, ",") + `}}`)
	if err != nil {
		t.Fatal(err)
	}
	value := reflect.ValueOf(got)
	for i := range value.NumField() {
		text := value.Field(i).String()
		if len(text) != maxStatusText || strings.ContainsAny(text, "\x1b\n\u202e") {
			t.Errorf("%s has %d bytes: %.20q", value.Type().Field(i).Name, len(text), text)
		}
	}
}

func TestOSInfoThatIsNone(t *testing.T) {
	for name, answer := range map[string]string{
		"no JSON":      "hello",
		"another type": `{"return":{"id":["debian"]}}`,
		"too long":     `{"return":{"id":"` + strings.Repeat("x", maxAgentAnswer) + `"}}`,
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := parseOSInfo(answer); err == nil || got != (hypervisor.GuestOS{}) {
				t.Errorf("got %+v (%v)", got, err)
			}
		})
	}
}

func TestGuestInterfaces(t *testing.T) {
	address := func(text string) libvirt.DomainIPAddress { return libvirt.DomainIPAddress{Addr: text} }
	got := guestInterfaces([]libvirt.DomainInterface{
		{Name: "lo", Hwaddr: "00:00:00:00:00:00", Addrs: []libvirt.DomainIPAddress{address("127.0.0.1")}},
		{Name: "enp1s0\n", Hwaddr: "02:AB:00:00:00:01", Addrs: []libvirt.DomainIPAddress{
			address("10.0.2.2"), address("::1"), address("fe80::1%eth0"), address("https://example.com"), address("fd10:0:2::2"),
		}},
	})
	want := []hypervisor.GuestInterface{{Name: "enp1s0", MAC: "02:ab:00:00:00:01", IPs: []string{"10.0.2.2", "fd10:0:2::2"}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestGuestInterfacesAreCapped(t *testing.T) {
	var addresses []libvirt.DomainIPAddress
	for i := range 10 * maxGuestAddresses {
		addresses = append(addresses, libvirt.DomainIPAddress{Addr: fmt.Sprintf("10.0.%d.%d", i/250, i%250+1)})
	}
	var list []libvirt.DomainInterface
	for i := range 10 * maxGuestInterfaces {
		list = append(list, libvirt.DomainInterface{
			Name: fmt.Sprintf("eth%d", i) + strings.Repeat("x", 1000), Hwaddr: strings.Repeat("ab:", 1000), Addrs: addresses,
		})
	}
	got := guestInterfaces(list)
	if len(got) != maxGuestInterfaces {
		t.Fatalf("%d interfaces, want %d", len(got), maxGuestInterfaces)
	}
	for _, i := range got {
		if len(i.IPs) != maxGuestAddresses || len(i.Name) != maxStatusText || len(i.MAC) != maxStatusText {
			t.Fatalf("%d addresses, a name of %d bytes, a MAC of %d", len(i.IPs), len(i.Name), len(i.MAC))
		}
	}
}
