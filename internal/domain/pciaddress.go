// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain

import (
	"fmt"
	"regexp"
	"strconv"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
)

var pciAddressPattern = regexp.MustCompile(`^([0-9a-fA-F]{4}):([0-9a-fA-F]{2}):([01][0-9a-fA-F])\.([0-7])$`)

// pciAddress parses a PCI address such as 0000:01:00.0.
func pciAddress(path *field.Path, text string) (*libvirtxml.DomainAddress, error) {
	parts := pciAddressPattern.FindStringSubmatch(text)
	if parts == nil {
		return nil, field.Invalid(path, text, "must be a PCI address such as 0000:01:00.0 (domain:bus:slot.function)")
	}
	var numbers [4]uint
	for i, part := range parts[1:] {
		number, err := strconv.ParseUint(part, 16, 16)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		numbers[i] = uint(number)
	}
	return &libvirtxml.DomainAddress{PCI: &libvirtxml.DomainAddressPCI{
		Domain: &numbers[0], Bus: &numbers[1], Slot: &numbers[2], Function: &numbers[3],
	}}, nil
}

// virtioModel returns the model of all virtio devices: virtio 1.0 only, or with the legacy interface for old guests.
func virtioModel(vmi *v1.VirtualMachineInstance) string {
	if isTrue(vmi.Spec.Domain.Devices.UseVirtioTransitional) {
		return "virtio-transitional"
	}
	return "virtio-non-transitional"
}
