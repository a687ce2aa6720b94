// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain_test

import (
	"testing"

	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/domain"
)

// Expected as in KubeVirt's converter, pkg/virt-launcher/virtwrap/converter/compute/os.go.
func TestACPITables(t *testing.T) {
	got := hasACPITables().build(t)
	expectEqual(t, got.OS.ACPI, &libvirtxml.DomainACPI{Tables: []libvirtxml.DomainACPITable{
		{Type: "slic", Path: "/var/run/kubevirt-private/files/tables/slic.bin"},
		{Type: "msdm", Path: "/var/run/kubevirt-private/files/tables/msdm.bin"},
	}})
	one := hasACPITables().domainSpec(func(d *v1.DomainSpec) { d.Firmware.ACPI.SlicNameRef = "" }).build(t)
	expectEqual(t, one.OS.ACPI, &libvirtxml.DomainACPI{Tables: []libvirtxml.DomainACPITable{
		{Type: "msdm", Path: "/var/run/kubevirt-private/files/tables/msdm.bin"},
	}})
	if none := makeGuest().build(t); none.OS.ACPI != nil {
		t.Errorf("got %v without tables", none.OS.ACPI)
	}
}

func TestACPITablesRefused(t *testing.T) {
	const path = "spec.domain.firmware.acpi"
	refers := func(acpi v1.ACPI) *guest {
		return hasACPITables().containerDisk("image",
			v1.DiskBusVirtio).domainSpec(func(d *v1.DomainSpec) { d.Firmware.ACPI = &acpi })
	}
	refers(v1.ACPI{}).expectRefused(t, path, "leave acpi out")
	refers(v1.ACPI{SlicNameRef: "image"}).expectRefused(t, path+".slicNameRef", "secret")
	refers(v1.ACPI{MsdmNameRef: "nothing"}).expectRefused(t, path+".msdmNameRef", "secret")
	hasACPITables().on(func(f *domain.Facts) { f.ACPI.MSDM = "" }).expectNotPrepared(t, path+".msdmNameRef")
}
