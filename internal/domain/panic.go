// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain

import (
	"k8s.io/apimachinery/pkg/util/validation/field"
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// configurePanicDevices adds the devices with which a guest's kernel reports a panic.
func configurePanicDevices(vmi *v1.VirtualMachineInstance, _ Facts, domain *libvirtxml.Domain) error {
	for i, device := range vmi.Spec.Domain.Devices.PanicDevices {
		path := devicesPath.Child("panicDevices").Index(i).Child("model")
		if device.Model == nil {
			return field.Required(path, "a panic device needs a model: hyperv, isa or pvpanic")
		}
		switch *device.Model {
		case v1.Hyperv, v1.Isa, v1.Pvpanic:
			domain.Devices.Panics = append(domain.Devices.Panics, libvirtxml.DomainPanic{Model: string(*device.Model)})
		default:
			return field.NotSupported(path, *device.Model, []v1.PanicDeviceModel{v1.Hyperv, v1.Isa, v1.Pvpanic})
		}
	}
	return nil
}
