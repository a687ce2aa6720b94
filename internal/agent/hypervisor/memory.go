// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package hypervisor

import (
	"context"
	"encoding/xml"
	"strings"

	"libvirt.org/go/libvirtxml"
)

// memoryDeviceModel is libvirt's name of the device from which a guest takes more memory.
const memoryDeviceModel = "virtio-mem"

// memoryDevices is what a live domain has about the memory that its guest has taken. Package libvirtxml lacks the element.
type memoryDevices struct {
	Devices struct {
		Memory []struct {
			Model  string `xml:"model,attr"`
			Target struct {
				Current struct {
					Unit  string `xml:"unit,attr"`
					Value uint64 `xml:",chardata"`
				} `xml:"current"`
			} `xml:"target"`
		} `xml:"memory"`
	} `xml:"devices"`
}

// Unmarshal reads the XML of a domain.
func (m *memoryDevices) Unmarshal(text string) error { return xml.Unmarshal([]byte(text), m) }

// ReadPlugged returns how many bytes the guest has taken from its memory devices, from the XML of a live domain.
func ReadPlugged(ctx context.Context, text string) (uint64, error) {
	if !strings.Contains(text, memoryDeviceModel) {
		return 0, nil
	}
	devices := &memoryDevices{}
	if err := ReadXML(ctx, text, devices); err != nil {
		return 0, err
	}
	var plugged uint64
	for _, device := range devices.Devices.Memory {
		if device.Model == memoryDeviceModel {
			plugged += Bytes(device.Target.Current.Value, device.Target.Current.Unit)
		}
	}
	return plugged, nil
}

// MemoryDevice returns the device of a domain from which its guest takes more memory, or nil.
func (d *Domain) MemoryDevice() *libvirtxml.DomainMemorydev {
	if d == nil || d.XML == nil || d.XML.Devices == nil {
		return nil
	}
	for i := range d.XML.Devices.Memorydevs {
		if device := &d.XML.Devices.Memorydevs[i]; device.Model == memoryDeviceModel && device.Target != nil {
			return device
		}
	}
	return nil
}

// AtBoot returns how many bytes of memory the guest had at its start: libvirt counts the size of the device as memory, too.
func (d *Domain) AtBoot() uint64 {
	if d == nil || d.XML == nil || d.XML.Memory == nil {
		return 0
	}
	all := Bytes(uint64(d.XML.Memory.Value), d.XML.Memory.Unit)
	if device := d.MemoryDevice(); device != nil && device.Target.Size != nil {
		all -= min(all, Bytes(uint64(device.Target.Size.Value), device.Target.Size.Unit))
	}
	return all
}

// Granted returns how many bytes of memory the guest may have.
func (d *Domain) Granted() uint64 {
	granted := d.AtBoot()
	if device := d.MemoryDevice(); device != nil && device.Target.Requested != nil {
		granted += Bytes(uint64(device.Target.Requested.Value), device.Target.Requested.Unit)
	}
	return granted
}

// Bytes returns a size in libvirt's XML in bytes. Its default unit is KiB.
func Bytes(value uint64, unit string) uint64 {
	shift := 10
	switch unit {
	case "b", "bytes":
		shift = 0
	case "M", "MiB":
		shift = 20
	case "G", "GiB":
		shift = 30
	}
	if value > 1<<62>>shift {
		return 1 << 62 // A size that no guest has: the launcher may be compromised.
	}
	return value << shift
}
