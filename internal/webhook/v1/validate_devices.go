// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"slices"

	v1 "github.com/vireo-project/vireo/api/v1"
)

var (
	inputBuses  = []v1.InputBus{"", v1.InputBusUSB, v1.InputBusVirtio}
	inputTypes  = []v1.InputType{"", v1.InputTypeTablet, v1.InputTypeKeyboard}
	panicModels = []v1.PanicDeviceModel{v1.Hyperv, v1.Isa, v1.Pvpanic}
	soundModels = []string{"", "ich9", "ac97"}
	ioThreads   = []v1.IOThreadsPolicy{
		v1.IOThreadsPolicyShared, v1.IOThreadsPolicyAuto, v1.IOThreadsPolicySupplementalPool,
	}
)

func checkInputs(c *check) {
	for i, input := range c.spec.Domain.Devices.Inputs {
		at := c.devices("inputs").Index(i)
		if !slices.Contains(inputBuses, input.Bus) {
			c.invalid(at.Child("bus"), input.Bus, "Input device can have only virtio or usb bus.")
		}
		if !slices.Contains(inputTypes, input.Type) {
			c.invalid(at.Child("type"), input.Type, "Input device can have only tablet or keyboard type.")
		}
	}
}

func checkSound(c *check) {
	sound := c.spec.Domain.Devices.Sound
	if sound == nil {
		return
	}
	p := c.devices("sound")
	if !slices.Contains(soundModels, sound.Model) {
		c.invalid(p.Child("model"), sound.Model, "Sound device type is not supported. Options: 'ich9' or 'ac97'")
	}
	if sound.Name == "" {
		c.required(p.Child("name"), "Sound device requires a name field.")
	}
}

func checkIOThreads(c *check) {
	policy := c.spec.Domain.IOThreadsPolicy
	if policy == nil {
		return
	}
	p := c.at("domain", "ioThreadsPolicy")
	if !slices.Contains(ioThreads, *policy) {
		c.invalid(p, *policy, "Invalid IOThreadsPolicy (%s). Use one of %v.", *policy, ioThreads)
	}
	pool := c.spec.Domain.IOThreads
	if *policy == v1.IOThreadsPolicySupplementalPool &&
		(pool == nil || pool.SupplementalPoolThreadCount == nil || *pool.SupplementalPoolThreadCount < 1) {
		c.required(c.at("domain", "ioThreads", "supplementalPoolThreadCount"),
			"the number of iothreads needs to be set and positive for the dedicated policy")
	}
}
