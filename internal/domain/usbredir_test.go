// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain_test

import (
	"testing"

	v1 "github.com/vireo-project/vireo/api/v1"
)

func TestUSBRedirection(t *testing.T) {
	if got := makeGuest().build(t).Devices.RedirDevs; len(got) != 0 {
		t.Errorf("%d ports for clients of a guest that wants none", len(got))
	}
	var paths []string
	for _, port := range makeGuest().devices(func(d *v1.Devices) { d.ClientPassthrough = &v1.ClientPassthroughDevices{} }).
		build(t).Devices.RedirDevs {
		if port.Bus != "usb" || port.Source.UNIX.Mode != "bind" {
			t.Errorf("a port on bus %q whose socket has mode %q, want usb and bind", port.Bus, port.Source.UNIX.Mode)
		}
		paths = append(paths, port.Source.UNIX.Path)
	}
	expectEqual(t, paths, []string{
		"/var/run/kubevirt/sockets/virt-usbredir-0", "/var/run/kubevirt/sockets/virt-usbredir-1",
		"/var/run/kubevirt/sockets/virt-usbredir-2", "/var/run/kubevirt/sockets/virt-usbredir-3",
	})
}
