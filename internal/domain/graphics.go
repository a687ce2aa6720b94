// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain

import (
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// videoModels are the values of spec.domain.devices.video.type.
var videoModels = []string{"vga", "cirrus", "virtio", "ramfb", "bochs"}

// videoMemoryKiB is the memory of a VGA adapter, as in KubeVirt.
const videoMemoryKiB = 16384

// configureGraphics adds a video adapter, and a VNC server without a listener: libvirt passes connections to it as file
// descriptors (virDomainOpenGraphics).
func configureGraphics(vmi *v1.VirtualMachineInstance, _ Facts, domain *libvirtxml.Domain) error {
	devices := vmi.Spec.Domain.Devices
	path := devicesPath.Child("video")
	if !enabled(devices.AutoattachGraphicsDevice) {
		if devices.Video != nil {
			return field.Forbidden(path, "there is no screen: leave it out, or leave autoattachGraphicsDevice out")
		}
		return nil
	}
	model := libvirtxml.DomainVideoModel{Type: "vga"}
	if bootloader(vmi).EFI != nil {
		// UEFI and its guests do not need the legacy memory of VGA.
		model.Type = "bochs"
	}
	if devices.Video != nil && devices.Video.Type != "" {
		model.Type = devices.Video.Type
		if !slices.Contains(videoModels, model.Type) {
			return field.NotSupported(path.Child("type"), model.Type, videoModels)
		}
	}
	model.Heads = 1
	if model.Type == "vga" {
		model.VRam = videoMemoryKiB
	}
	domain.Devices.Graphics = []libvirtxml.DomainGraphic{{
		// An empty listener has libvirt's type none.
		VNC: &libvirtxml.DomainGraphicVNC{Listeners: []libvirtxml.DomainGraphicListener{{}}},
	}}
	domain.Devices.Videos = []libvirtxml.DomainVideo{{Model: model}}
	return nil
}
