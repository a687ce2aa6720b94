// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain_test

import (
	"testing"

	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
)

func watched(device v1.WatchdogDevice) *guest {
	return makeGuest().devices(func(d *v1.Devices) { d.Watchdog = &v1.Watchdog{Name: "dog", WatchdogDevice: device} })
}

func TestWatchdog(t *testing.T) {
	expectEqual(t, makeGuest().build(t).Devices.Watchdogs, nil)
	for action, want := range map[v1.WatchdogAction]string{
		"": "reset", v1.WatchdogActionReset: "reset", v1.WatchdogActionPoweroff: "poweroff", v1.WatchdogActionShutdown: "shutdown",
	} {
		t.Run("action "+string(action), func(t *testing.T) {
			got := watched(v1.WatchdogDevice{I6300ESB: &v1.I6300ESBWatchdog{Action: action}}).build(t)
			expectEqual(t, got.Devices.Watchdogs, []libvirtxml.DomainWatchdog{{
				Model: "i6300esb", Action: want, Alias: &libvirtxml.DomainAlias{Name: "ua-watchdog-dog"},
			}})
		})
	}
}

func TestWatchdogRefused(t *testing.T) {
	watched(v1.WatchdogDevice{}).expectRefused(t, "spec.domain.devices.watchdog.i6300esb", "device")
	watched(v1.WatchdogDevice{Diag288: &v1.Diag288Watchdog{}}).expectRefused(t, "spec.domain.devices.watchdog.diag288",
		"i6300esb")
	watched(v1.WatchdogDevice{I6300ESB: &v1.I6300ESBWatchdog{Action: "bark"}}).
		expectRefused(t, "spec.domain.devices.watchdog.i6300esb.action", "poweroff")
}
