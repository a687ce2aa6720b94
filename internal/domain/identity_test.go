// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain_test

import (
	"testing"

	v1 "github.com/vireo-project/vireo/api/v1"
)

func TestIdentity(t *testing.T) {
	got := makeGuest().build(t)
	expectEqual(t, got.Name, "default_testvmi")
	expectEqual(t, got.Title, "default/testvmi")
	expectEqual(t, got.UUID, testUUID)
	expectEqual(t, got.Type, "qemu")
	expectEqual(t, makeGuest().kvm().build(t).Type, "kvm")
}

func TestMetadataEscapesTheUID(t *testing.T) {
	g := makeGuest()
	g.vmi.UID = `<&">`
	expectEqual(t, g.build(t).Metadata.XML, `<kubevirt xmlns="http://kubevirt.io"><uid>&lt;&amp;&#34;&gt;</uid></kubevirt>`)
}

func TestUUIDIsDerivedFromTheName(t *testing.T) {
	g := makeGuest().domainSpec(func(d *v1.DomainSpec) { d.Firmware = nil })
	// As in KubeVirt: uuid.uuid5(uuid.UUID("6a1a24a1-4061-4607-8bf4-a3963d0c5895"), "testvmi") in Python.
	const want = "f8918e71-270a-598e-a2a4-1afac39e1394"
	got := g.build(t)
	expectEqual(t, got.UUID, want)
	for _, entry := range got.SysInfo[0].SMBIOS.System.Entry {
		if entry.Name == "uuid" && entry.Value != want {
			t.Errorf("SMBIOS shows the UUID %s, libvirt has %s", entry.Value, want)
		}
	}
}
