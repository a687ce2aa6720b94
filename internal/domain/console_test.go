// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain_test

import (
	"testing"

	"k8s.io/utils/ptr"
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
)

func TestSerialConsole(t *testing.T) {
	pty := &libvirtxml.DomainChardevSource{Pty: &libvirtxml.DomainChardevSourcePty{}}
	serial := func(log *libvirtxml.DomainChardevLog) []libvirtxml.DomainSerial {
		return []libvirtxml.DomainSerial{{Source: pty, Target: &libvirtxml.DomainSerialTarget{Port: ptr.To[uint](0)},
			Log: log}}
	}
	console := []libvirtxml.DomainConsole{{
		Source: pty, Target: &libvirtxml.DomainConsoleTarget{Type: "serial", Port: ptr.To[uint](0)},
	}}
	for name, tc := range map[string]struct {
		change   func(*v1.Devices)
		serials  []libvirtxml.DomainSerial
		consoles []libvirtxml.DomainConsole
	}{
		"logged by default": {func(*v1.Devices) {},
			serial(&libvirtxml.DomainChardevLog{File: "/var/run/libvirt/console.fifo", Append: "on"}), console},
		"not logged": {func(d *v1.Devices) { d.LogSerialConsole = ptr.To(false) }, serial(nil), console},
		"none":       {func(d *v1.Devices) { d.AutoattachSerialConsole = ptr.To(false) }, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			got := makeGuest().devices(tc.change).build(t).Devices
			expectEqual(t, got.Serials, tc.serials)
			expectEqual(t, got.Consoles, tc.consoles)
		})
	}
}
