// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package instancetype

import v1 "github.com/vireo-project/vireo/api/v1"

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
