// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain_test

import (
	"testing"

	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
)

func TestDevicesKeepTheirNames(t *testing.T) {
	devices := makeGuest().devices(func(d *v1.Devices) {
		d.Watchdog = &v1.Watchdog{Name: "dog", WatchdogDevice: v1.WatchdogDevice{I6300ESB: &v1.I6300ESBWatchdog{}}}
		d.Sound = &v1.SoundDevice{Name: "a sound"}
		d.Inputs = []v1.Input{
			{Name: "pen", Type: v1.InputTypeTablet}, {Name: "pen", Type: v1.InputTypeKeyboard}, {Type: v1.InputTypeTablet},
		}
	}).build(t).Devices
	expectEqual(t, devices.Watchdogs[0].Alias, &libvirtxml.DomainAlias{Name: "ua-watchdog-dog"})
	expectEqual(t, devices.Sounds[0].Alias, nil)
	expectEqual(t, devices.Inputs[0].Alias, &libvirtxml.DomainAlias{Name: "ua-input-pen"})
	// An alias belongs to one device.
	expectEqual(t, devices.Inputs[1].Alias, nil)
	expectEqual(t, devices.Inputs[2].Alias, nil)
}
