// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package brokerapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestRequestGoesThroughAConnection(t *testing.T) {
	var buffer bytes.Buffer
	sent := &Request{Verb: Inspect, Pod: "uid", Arguments: json.RawMessage(`{"path":"/dev/kvm"}`)}
	if err := WriteRequest(&buffer, sent); err != nil {
		t.Fatal(err)
	}
	got, err := ReadRequest(&buffer, func(uint32) error { return nil })
	if err != nil || got.Verb != sent.Verb || got.Pod != sent.Pod || string(got.Arguments) != string(sent.Arguments) {
		t.Errorf("got %+v, %v", got, err)
	}
	large := &Request{Arguments: json.RawMessage(`"` + strings.Repeat("x", MaxRequest) + `"`)}
	if err := WriteRequest(&buffer, large); !errors.Is(err, ErrLength) {
		t.Errorf("a request that is too long: %v", err)
	}
	refused := errors.New("not now")
	if err := WriteRequest(&buffer, sent); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadRequest(&buffer, func(uint32) error { return refused }); !errors.Is(err, refused) {
		t.Errorf("a request that is not admitted: %v", err)
	}
}

func TestErrorsKeepTheirMeaning(t *testing.T) {
	for err, want := range map[error]struct {
		code Code
		is   error
	}{
		fmt.Errorf("open: %w", fs.ErrNotExist):          {CodeNotFound, fs.ErrNotExist},
		fmt.Errorf("connect: %w", unix.ECONNREFUSED):    {CodeNoListener, unix.ECONNREFUSED},
		fmt.Errorf("check: %w", Refused("no %s", "it")): {CodeRefused, nil},
		errors.New("other"):                             {CodeFailed, nil},
	} {
		text, failed := json.Marshal(FromError(err))
		if failed != nil {
			t.Fatal(failed)
		}
		got := &Error{}
		if failed := json.Unmarshal(text, got); failed != nil {
			t.Fatal(failed)
		}
		if got.Code != want.code || CodeOf(fmt.Errorf("x: %w", got)) != want.code || got.Message != err.Error() {
			t.Errorf("%v became %+v", err, got)
		}
		for _, is := range []error{fs.ErrNotExist, unix.ECONNREFUSED} {
			if errors.Is(got, is) != (is == want.is) { //nolint:errorlint // the same error
				t.Errorf("%v is %v: %t", got, is, errors.Is(got, is))
			}
		}
	}
	if long := FromError(errors.New(strings.Repeat("x", 2*maxMessage))); len(long.Message) != maxMessage {
		t.Errorf("a message has %d bytes", len(long.Message))
	}
}

func TestCheckPlan(t *testing.T) {
	good := func() Interface {
		return Interface{
			Name: "default", PodInterface: "eth0", Binding: Masquerade, MAC: net.HardwareAddr{2, 0, 0, 0, 0, 1},
			IPv4: netip.MustParsePrefix("10.0.2.0/24"), IPv6: netip.MustParsePrefix("fd10:0:2::/120"),
			Ports: []PortRange{{Protocol: "TCP", First: 80, Last: 80}},
		}
	}
	if err := (Plan{Interfaces: []Interface{good(), {Name: "blue", PodInterface: "pod16477688c0e", Binding: Bridge}}}).Check(); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*Interface){
		"another binding":         func(i *Interface) { i.Binding = "macvtap" },
		"no hardware address":     func(i *Interface) { i.MAC = nil },
		"a multicast address":     func(i *Interface) { i.MAC[0] = 1 },
		"a short address":         func(i *Interface) { i.MAC = i.MAC[:3] },
		"no IPv4":                 func(i *Interface) { i.IPv4 = netip.Prefix{} },
		"no room":                 func(i *Interface) { i.IPv4 = netip.MustParsePrefix("10.0.2.0/31") },
		"IPv6 in IPv4":            func(i *Interface) { i.IPv4 = i.IPv6 },
		"IPv4 in IPv6":            func(i *Interface) { i.IPv6 = i.IPv4 },
		"a protocol":              func(i *Interface) { i.Ports[0].Protocol = "SCTP" },
		"port 0":                  func(i *Interface) { i.Ports[0].First = 0 },
		"ports in reverse":        func(i *Interface) { i.Ports[0].First = 81 },
		"too many ports":          func(i *Interface) { i.Ports = make([]PortRange, maxPorts+1) },
		"a long name":             func(i *Interface) { i.Name = strings.Repeat("n", maxName+1) },
		"a path as an interface":  func(i *Interface) { i.PodInterface = "../all" },
		"the loopback interface":  func(i *Interface) { i.PodInterface = "lo" },
		"a name that is too long": func(i *Interface) { i.PodInterface = "interface0123" },
	} {
		changed := good()
		change(&changed)
		if err := (Plan{Interfaces: []Interface{changed}}).Check(); CodeOf(err) != CodeInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := (Plan{Interfaces: []Interface{good(), good()}}).Check(); CodeOf(err) != CodeInvalid {
		t.Errorf("twice: %v", err)
	}
	if err := (Plan{Interfaces: make([]Interface, maxInterfaces+1)}).Check(); CodeOf(err) != CodeInvalid {
		t.Errorf("too many: %v", err)
	}
}
