// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain_test

import (
	"testing"

	"k8s.io/utils/ptr"
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
)

func TestPanicDevices(t *testing.T) {
	panics := func(models ...*v1.PanicDeviceModel) *guest {
		return makeGuest().devices(func(d *v1.Devices) {
			for _, model := range models {
				d.PanicDevices = append(d.PanicDevices, v1.PanicDevice{Model: model})
			}
		})
	}
	expectEqual(t, panics(ptr.To(v1.Pvpanic), ptr.To(v1.Hyperv), ptr.To(v1.Isa)).build(t).Devices.Panics,
		[]libvirtxml.DomainPanic{{Model: "pvpanic"}, {Model: "hyperv"}, {Model: "isa"}})
	panics(nil).expectRefused(t, "spec.domain.devices.panicDevices[0].model", "pvpanic")
	panics(ptr.To[v1.PanicDeviceModel]("s390")).expectRefused(t, "spec.domain.devices.panicDevices[0].model", "isa")
}
