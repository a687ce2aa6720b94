// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain

import (
	"k8s.io/apimachinery/pkg/util/validation/field"
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// watchdogActions are the values of i6300esb.action.
var watchdogActions = []v1.WatchdogAction{v1.WatchdogActionPoweroff, v1.WatchdogActionReset, v1.WatchdogActionShutdown}

// configureWatchdog adds the watchdog device.
func configureWatchdog(vmi *v1.VirtualMachineInstance, _ Facts, domain *libvirtxml.Domain) error {
	watchdog := vmi.Spec.Domain.Devices.Watchdog
	if watchdog == nil {
		return nil
	}
	path := devicesPath.Child("watchdog")
	if watchdog.I6300ESB == nil {
		return field.Required(path.Child("i6300esb"), "a watchdog needs a device")
	}
	action := watchdog.I6300ESB.Action
	switch action {
	case "":
		action = v1.WatchdogActionReset
	case v1.WatchdogActionPoweroff, v1.WatchdogActionReset, v1.WatchdogActionShutdown:
	default:
		return field.NotSupported(path.Child("i6300esb", "action"), action, watchdogActions)
	}
	domain.Devices.Watchdogs = []libvirtxml.DomainWatchdog{{
		Model: "i6300esb", Action: string(action), Alias: userAlias("watchdog", watchdog.Name),
	}}
	return nil
}
