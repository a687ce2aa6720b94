// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// configureACPITables adds the ACPI tables SLIC and MSDM, which contain licenses of Windows.
func configureACPITables(vmi *v1.VirtualMachineInstance, facts Facts, domain *libvirtxml.Domain) error {
	firmware := vmi.Spec.Domain.Firmware
	if firmware == nil || firmware.ACPI == nil {
		return nil
	}
	path := firmwarePath.Child("acpi")
	if firmware.ACPI.SlicNameRef == "" && firmware.ACPI.MsdmNameRef == "" {
		return field.Required(path, "name the volume of a SLIC or an MSDM table, or leave acpi out")
	}
	var tables []libvirtxml.DomainACPITable
	for _, table := range []struct {
		kind, field, volume, path string
	}{
		{"slic", "slicNameRef", firmware.ACPI.SlicNameRef, facts.ACPI.SLIC},
		{"msdm", "msdmNameRef", firmware.ACPI.MsdmNameRef, facts.ACPI.MSDM},
	} {
		switch {
		case table.volume == "":
			continue
		case !isSecret(vmi, table.volume):
			return field.Invalid(path.Child(table.field), table.volume, "must be the name of a volume of type secret")
		case table.path == "":
			return fmt.Errorf("%s: the table in volume %q is %w", path.Child(table.field), table.volume, ErrNotPrepared)
		}
		tables = append(tables, libvirtxml.DomainACPITable{Type: table.kind, Path: table.path})
	}
	if domain.OS != nil {
		domain.OS.ACPI = &libvirtxml.DomainACPI{Tables: tables}
	}
	return nil
}

func isSecret(vmi *v1.VirtualMachineInstance, volume string) bool {
	for i := range vmi.Spec.Volumes {
		if v := &vmi.Spec.Volumes[i]; v.Name == volume {
			return v.Secret != nil
		}
	}
	return false
}
