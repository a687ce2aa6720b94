// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain_test

import (
	"strings"
	"testing"

	"k8s.io/utils/ptr"
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
)

func TestVideo(t *testing.T) {
	video := func(model string) func(*v1.Devices) {
		return func(d *v1.Devices) { d.Video = &v1.VideoDevice{Type: model} }
	}
	for name, tc := range map[string]struct {
		guest *guest
		want  []libvirtxml.DomainVideo
	}{
		"BIOS": {makeGuest(), []libvirtxml.DomainVideo{{Model: libvirtxml.DomainVideoModel{Type: "vga", Heads: 1, VRam: 16384}}}},
		"EFI":  {bootsEFI(false), []libvirtxml.DomainVideo{{Model: libvirtxml.DomainVideoModel{Type: "bochs", Heads: 1}}}},
		"requested": {bootsEFI(false).devices(video("virtio")),
			[]libvirtxml.DomainVideo{{Model: libvirtxml.DomainVideoModel{Type: "virtio", Heads: 1}}}},
		"requested without a type": {makeGuest().devices(video("")),
			[]libvirtxml.DomainVideo{{Model: libvirtxml.DomainVideoModel{Type: "vga", Heads: 1, VRam: 16384}}}},
		"headless": {headless(), nil},
	} {
		t.Run(name, func(t *testing.T) { expectEqual(t, tc.guest.build(t).Devices.Videos, tc.want) })
	}
	makeGuest().devices(video("holo")).expectRefused(t, "spec.domain.devices.video.type", "bochs")
	headless().devices(video("vga")).expectRefused(t, "spec.domain.devices.video", "autoattachGraphicsDevice")
}

func TestVNCHasNoListener(t *testing.T) {
	built := makeGuest().build(t)
	text, err := built.Devices.Graphics[0].Marshal()
	if err != nil {
		t.Fatal(err)
	}
	expectEqual(t, strings.Join(strings.Fields(text), " "), `<graphics type="vnc"> <listen type="none"></listen> </graphics>`)

	without := makeGuest().devices(func(d *v1.Devices) { d.AutoattachGraphicsDevice = ptr.To(false) }).build(t)
	expectEqual(t, without.Devices.Graphics, nil)
}
