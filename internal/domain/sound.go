// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain

import (
	"k8s.io/apimachinery/pkg/util/validation/field"
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// configureSound adds a sound card for guests that need one. Its output is discarded.
func configureSound(vmi *v1.VirtualMachineInstance, _ Facts, domain *libvirtxml.Domain) error {
	sound := vmi.Spec.Domain.Devices.Sound
	if sound == nil {
		return nil
	}
	model := sound.Model
	switch model {
	case "":
		model = "ich9"
	case "ich9", "ac97":
	default:
		return field.NotSupported(devicesPath.Child("sound", "model"), model, []string{"ich9", "ac97"})
	}
	domain.Devices.Sounds = []libvirtxml.DomainSound{{Model: model, Alias: userAlias("sound", sound.Name)}}
	return nil
}
