// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package instancetype

import (
	"slices"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// Names of the devices that are added to a VMI without any. KubeVirt's.
const (
	defaultInterfaceName = "default"
	defaultInputName     = "default-0"
)

// AddImplicitDisks adds a disk for each volume that no device uses.
func AddImplicitDisks(spec *v1.VirtualMachineInstanceSpec) {
	devices := &spec.Domain.Devices
	used := map[string]bool{}
	for i := range devices.Disks {
		used[devices.Disks[i].Name] = true
	}
	for i := range devices.Filesystems {
		used[devices.Filesystems[i].Name] = true
	}
	for i := range spec.Volumes {
		if volume := &spec.Volumes[i]; volume.MemoryDump == nil && !used[volume.Name] {
			devices.Disks = append(devices.Disks, v1.Disk{Name: volume.Name})
			used[volume.Name] = true
		}
	}
}

// DiskOf returns the disk of a volume, or the one that AddImplicitDisks would add for it. It returns nil if the volume is a file system or a
// memory dump, or does not exist.
func DiskOf(spec *v1.VirtualMachineInstanceSpec, volume string) *v1.Disk {
	devices := &spec.Domain.Devices
	named := func(v v1.Volume) bool { return v.Name == volume && v.MemoryDump == nil }
	if !slices.ContainsFunc(spec.Volumes, named) || slices.ContainsFunc(devices.Filesystems, func(f v1.Filesystem) bool { return f.Name == volume }) {
		return nil
	}
	if i := slices.IndexFunc(devices.Disks, func(d v1.Disk) bool { return d.Name == volume }); i >= 0 {
		return &devices.Disks[i]
	}
	return &v1.Disk{Name: volume}
}

// AddDefaultInterface adds an interface on the Pod's network to a spec without interfaces and networks, unless
// autoattachPodInterface is false.
func AddDefaultInterface(spec *v1.VirtualMachineInstanceSpec) {
	devices := &spec.Domain.Devices
	if attach := devices.AutoattachPodInterface; attach != nil && !*attach || len(devices.Interfaces)+len(spec.Networks) > 0 {
		return
	}
	devices.Interfaces = []v1.Interface{{Name: defaultInterfaceName}}
	spec.Networks = []v1.Network{{Name: defaultInterfaceName, NetworkSource: v1.NetworkSource{Pod: &v1.PodNetwork{}}}}
}

// addDefaultInput adds an input device to a spec without one if autoattachInputDevice is true. The defaults of a VMI do not add one,
// because internal/domain adds the device to the domain.
func addDefaultInput(spec *v1.VirtualMachineInstanceSpec) {
	devices := &spec.Domain.Devices
	if attach := devices.AutoattachInputDevice; attach != nil && *attach && len(devices.Inputs) == 0 {
		devices.Inputs = []v1.Input{{Name: defaultInputName}}
	}
}
