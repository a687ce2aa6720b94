// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package hotplug decides which volumes are plugged into a running guest and unplugged from it. It is pure. Package
// vmistatus has the steps in which that happens.
package hotplug

import (
	"fmt"
	"slices"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/diskbus"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// SetDefaults sets the kind and the bus of the disk of a hotpluggable volume.
func SetDefaults(disk *v1.Disk) {
	if disk.Disk == nil && disk.LUN == nil && disk.CDRom == nil {
		disk.Disk = &v1.DiskTarget{}
	}
	if disk.Disk != nil && disk.Disk.Bus == "" {
		disk.Disk.Bus = diskbus.Plugged
	}
	if disk.LUN != nil && disk.LUN.Bus == "" {
		disk.LUN.Bus = diskbus.Plugged
	}
}

// Problem returns why a disk cannot be plugged into a running guest, or "". KubeVirt's messages. Source:
// kubevirt/kubevirt pkg/storage/admitters.
func Problem(disk *v1.Disk) string {
	kind, bus := diskbus.OfDisk(disk)
	row := diskbus.Of(bus)
	switch {
	case kind == diskbus.CDRom || kind == "":
		return fmt.Sprintf("Hotplug configuration for [%s] requires diskDevice of type 'disk' or 'lun' to be used.",
			disk.Name)
	case row.Plugs(kind):
	case kind == diskbus.LUN:
		return fmt.Sprintf("Hotplug configuration for LUN [%s] requires bus to be 'scsi'. [%s] is not permitted.", disk.Name,
			bus)
	default:
		return fmt.Sprintf("Hotplug configuration for disk [%s] requires bus to be 'scsi' or 'virtio'. [%s] is not permitted.",
			disk.Name, bus)
	}
	if disk.DedicatedIOThread != nil && *disk.DedicatedIOThread && !row.Virtio {
		return fmt.Sprintf("Hotplug configuration for [%s] requires virtio bus for IOThreads.", disk.Name)
	}
	return ""
}

// FindVolume returns a volume of a spec, or nil.
func FindVolume(spec *v1.VirtualMachineInstanceSpec, name string) *v1.Volume {
	if i := slices.IndexFunc(spec.Volumes, func(v v1.Volume) bool { return v.Name == name }); i >= 0 {
		return &spec.Volumes[i]
	}
	return nil
}

// Add adds a volume to a spec, and its disk unless the spec has it: a CD-ROM drive into which the volume is inserted.
func Add(spec *v1.VirtualMachineInstanceSpec, volume *v1.Volume, disk *v1.Disk) {
	spec.Volumes = append(spec.Volumes, *volume.DeepCopy())
	if vmistatus.FindDisk(spec, disk.Name) == nil {
		spec.Domain.Devices.Disks = append(spec.Domain.Devices.Disks, *disk.DeepCopy())
	}
}

// Remove removes a volume from a spec, and its disk unless that is a CD-ROM drive, which the guest keeps.
func Remove(spec *v1.VirtualMachineInstanceSpec, name string) {
	spec.Volumes = slices.DeleteFunc(spec.Volumes, func(v v1.Volume) bool { return v.Name == name })
	spec.Domain.Devices.Disks = slices.DeleteFunc(spec.Domain.Devices.Disks,
		func(d v1.Disk) bool { return d.Name == name && d.CDRom == nil })
}
