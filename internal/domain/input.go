// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain

import (
	"k8s.io/apimachinery/pkg/util/validation/field"
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// configureInputs adds tablets and keyboards. The machine type has a PS/2 mouse and keyboard.
func configureInputs(vmi *v1.VirtualMachineInstance, _ Facts, domain *libvirtxml.Domain) error {
	devices := vmi.Spec.Domain.Devices
	inputs := devices.Inputs
	if len(inputs) == 0 && isTrue(devices.AutoattachInputDevice) {
		inputs = []v1.Input{{Type: v1.InputTypeTablet, Bus: v1.InputBusUSB}}
	}
	named := map[string]bool{}
	for i, input := range inputs {
		path := devicesPath.Child("inputs").Index(i)
		if input.Type != v1.InputTypeTablet && input.Type != v1.InputTypeKeyboard {
			return field.NotSupported(path.Child("type"), input.Type, []v1.InputType{v1.InputTypeTablet, v1.InputTypeKeyboard})
		}
		out := libvirtxml.DomainInput{Type: string(input.Type)}
		switch input.Bus {
		case v1.InputBusUSB, "":
			out.Bus = string(v1.InputBusUSB)
		case v1.InputBusVirtio:
			// libvirt has no transitional or non-transitional models of input devices.
			out.Bus, out.Model = string(v1.InputBusVirtio), v1.VirtIO
		default:
			return field.NotSupported(path.Child("bus"), input.Bus, []v1.InputBus{v1.InputBusUSB, v1.InputBusVirtio})
		}
		if !named[input.Name] {
			out.Alias = userAlias("input", input.Name)
			named[input.Name] = true
		}
		domain.Devices.Inputs = append(domain.Devices.Inputs, out)
	}
	return nil
}
