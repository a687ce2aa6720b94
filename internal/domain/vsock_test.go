// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain_test

import (
	"testing"

	"k8s.io/utils/ptr"
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
)

func TestVSOCK(t *testing.T) {
	g := makeGuest().devices(func(d *v1.Devices) { d.AutoattachVSOCK = ptr.To(true) })
	g.expectNotPrepared(t, "status.VSOCKCID")
	g.vmi.Status.VSOCKCID = ptr.To[uint32](4294967295)
	expectEqual(t, g.build(t).Devices.VSock, &libvirtxml.DomainVSock{
		Model: "virtio-non-transitional", CID: &libvirtxml.DomainVSockCID{Auto: "no", Address: "4294967295"},
	})
	expectEqual(t, makeGuest().build(t).Devices.VSock, nil)
}
