// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain

import (
	"errors"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// refuseUnsupported names every field that asks for something that this package cannot build. A guest never
// runs with less than its spec says.
func refuseUnsupported(vmi *v1.VirtualMachineInstance, _ Facts, _ *libvirtxml.Domain) error {
	var errs []error
	refuse := func(asked bool, path *field.Path) {
		if asked {
			errs = append(errs, field.Forbidden(path, "not implemented: leave it out"))
		}
	}
	spec := &vmi.Spec.Domain
	refuse(spec.LaunchSecurity != nil, domainPath.Child("launchSecurity"))
	if cpu := spec.CPU; cpu != nil {
		refuse(cpu.DedicatedCPUPlacement, cpuPath.Child("dedicatedCpuPlacement"))
		refuse(cpu.IsolateEmulatorThread, cpuPath.Child("isolateEmulatorThread"))
		refuse(cpu.NUMA != nil, cpuPath.Child("numa"))
		refuse(cpu.Realtime != nil, cpuPath.Child("realtime"))
	}
	refuse(spec.Firmware != nil && spec.Firmware.ACPI != nil, firmwarePath.Child("acpi"))

	devices := &spec.Devices
	refuse(len(devices.GPUs) > 0, devicesPath.Child("gpus"))
	refuse(len(devices.HostDevices) > 0, devicesPath.Child("hostDevices"))
	refuse(len(devices.Filesystems) > 0, devicesPath.Child("filesystems"))
	refuse(devices.DownwardMetrics != nil, devicesPath.Child("downwardMetrics"))
	refuse(devices.ClientPassthrough != nil, devicesPath.Child("clientPassthrough"))
	refuse(devices.TPM != nil && enabled(devices.TPM.Enabled), devicesPath.Child("tpm"))
	for i := range devices.Disks {
		refuse(isTrue(devices.Disks[i].ChangedBlockTracking), devicesPath.Child("disks").Index(i).Child("changedBlockTracking"))
	}
	refuse(vmi.Annotations[v1.PlacePCIDevicesOnRootComplex] == "true",
		field.NewPath("metadata", "annotations").Key(v1.PlacePCIDevicesOnRootComplex))
	return errors.Join(errs...)
}
