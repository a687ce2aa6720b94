// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain_test

import (
	"testing"

	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
)

func TestSound(t *testing.T) {
	sound := func(model string) *guest {
		return makeGuest().devices(func(d *v1.Devices) { d.Sound = &v1.SoundDevice{Name: "sound", Model: model} })
	}
	expectEqual(t, makeGuest().build(t).Devices.Sounds, nil)
	for model, want := range map[string]string{"": "ich9", "ich9": "ich9", "ac97": "ac97"} {
		expectEqual(t, sound(model).build(t).Devices.Sounds, []libvirtxml.DomainSound{{
			Model: want, Alias: &libvirtxml.DomainAlias{Name: "ua-sound-sound"},
		}})
	}
	sound("sb16").expectRefused(t, "spec.domain.devices.sound.model", "ac97")
}
