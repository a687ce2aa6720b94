// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain_test

import (
	"testing"

	"k8s.io/utils/ptr"
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
)

func TestInputs(t *testing.T) {
	inputs := func(inputs ...v1.Input) *guest { return makeGuest().devices(func(d *v1.Devices) { d.Inputs = inputs }) }
	attach := func(d *v1.Devices) { d.AutoattachInputDevice = ptr.To(true) }
	tablet := []libvirtxml.DomainInput{{Type: "tablet", Bus: "usb"}}
	for name, tc := range map[string]struct {
		guest *guest
		want  []libvirtxml.DomainInput
	}{
		"none":               {makeGuest(), nil},
		"bus defaults":       {inputs(v1.Input{Type: v1.InputTypeTablet}), tablet},
		"attached":           {makeGuest().devices(attach), tablet},
		"named, not doubled": {inputs(v1.Input{Type: v1.InputTypeTablet, Bus: v1.InputBusUSB}).devices(attach), tablet},
		"virtio keyboard": {inputs(v1.Input{Type: v1.InputTypeKeyboard, Bus: v1.InputBusVirtio}),
			[]libvirtxml.DomainInput{{Type: "keyboard", Bus: "virtio", Model: "virtio"}}},
	} {
		t.Run(name, func(t *testing.T) { expectEqual(t, tc.guest.build(t).Devices.Inputs, tc.want) })
	}
	inputs(v1.Input{Type: "joystick"}).expectRefused(t, "spec.domain.devices.inputs[0].type", "tablet")
	inputs(v1.Input{Type: v1.InputTypeTablet, Bus: "ps2"}).expectRefused(t, "spec.domain.devices.inputs[0].bus", "virtio")
}
