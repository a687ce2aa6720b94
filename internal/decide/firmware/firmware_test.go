// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package firmware

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	v1 "github.com/vireo-project/vireo/api/v1"
)

func TestDerive(t *testing.T) {
	for _, from := range []Identity{FromUID, FromName} {
		if diff := cmp.Diff(Derive("ns", "vm", "1", from), Derive("ns", "vm", "1", from)); diff != "" {
			t.Errorf("%s: another identity each time:\n%s", from, diff)
		}
	}
	one, other := Derive("ns", "vm", "1", FromUID), Derive("ns", "vm", "2", FromUID)
	if one.UUID == other.UUID || one.Serial == other.Serial || one.Serial == "" || one.UUID == "1" {
		t.Errorf("two VMs of one name have %+v and %+v", one, other)
	}
	// The UUID that KubeVirt derives from this name.
	want := Record{VM: "ns/vm", UUID: "d633a622-2335-5606-93ae-d432b7c7f2d2"}
	if diff := cmp.Diff(want, Derive("ns", "vm", "1", FromName)); diff != "" {
		t.Error(diff)
	}
}

func TestRecordOf(t *testing.T) {
	const id = "5d307ca9-b3ef-428c-8861-06e72d69f223"
	record := NewRecord("ns", "vm")
	if other := NewRecord("ns", "vm"); other.UUID == record.UUID || other.Serial == record.Serial ||
		record.UUID == record.Serial {
		t.Errorf("two new identities are %+v and %+v", record, other)
	}
	for name, c := range map[string]struct {
		text  string
		valid bool
	}{
		"its own":                   {record.Text(), true},
		"without a serial number":   {Record{VM: "ns/vm", UUID: id}.Text(), true},
		"missing":                   {"", false},
		"no JSON":                   {"x", false},
		"of a VM of another name":   {NewRecord("ns", "copy").Text(), false},
		"of another namespace":      {NewRecord("copy", "vm").Text(), false},
		"no UUID":                   {Record{VM: "ns/vm"}.Text(), false},
		"another text as UUID":      {Record{VM: "ns/vm", UUID: "../x"}.Text(), false},
		"another text as serial":    {Record{VM: "ns/vm", UUID: id, Serial: "<>"}.Text(), false},
		"longer than any record is": {record.Text() + strings.Repeat(" ", maxRecord), false},
	} {
		t.Run(name, func(t *testing.T) {
			got, valid := RecordOf("ns", "vm", map[string]string{RecordAnnotation: c.text})
			if valid != c.valid || valid && got.Text() != c.text {
				t.Errorf("got %+v, %v", got, valid)
			}
		})
	}
}

func TestApply(t *testing.T) {
	record := NewRecord("ns", "vm")
	for name, c := range map[string]struct{ template, want *v1.Firmware }{
		"nothing in the template":       {nil, &v1.Firmware{UUID: "u", Serial: "s"}},
		"a serial number":               {&v1.Firmware{Serial: "mine"}, &v1.Firmware{UUID: "u", Serial: "mine"}},
		"a UUID and a serial number":    {&v1.Firmware{UUID: "x", Serial: "mine"}, &v1.Firmware{UUID: "x", Serial: "mine"}},
		"a UUID without serial number":  {&v1.Firmware{UUID: "x"}, &v1.Firmware{UUID: "x", Serial: "s"}},
		"something else about firmware": {&v1.Firmware{Bootloader: &v1.Bootloader{}}, &v1.Firmware{UUID: "u", Serial: "s", Bootloader: &v1.Bootloader{}}},
	} {
		record.UUID, record.Serial = "u", "s"
		spec := &v1.VirtualMachineInstanceSpec{}
		spec.Domain.Firmware = c.template.DeepCopy()
		record.Apply(spec)
		if diff := cmp.Diff(c.want, spec.Domain.Firmware); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
