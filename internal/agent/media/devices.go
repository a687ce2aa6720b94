// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package media

import (
	"context"
	"errors"
	"fmt"

	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/domain"
)

// device describes a tagged device to the guest. The fields are those of OpenStack's device tagging, as in KubeVirt.
// Sources: kubevirt/kubevirt pkg/cloud-init, DeviceData; OpenStack nova, doc/source/user/metadata.rst.
type device struct {
	Type    string   `json:"type"`
	Bus     string   `json:"bus"`
	Address string   `json:"address"`
	MAC     string   `json:"mac,omitempty"`
	Serial  string   `json:"serial,omitempty"`
	Tags    []string `json:"tags"`
}

// HasTaggedDevices reports whether a VMI has tagged devices and a config drive, the one medium that describes them.
func HasTaggedDevices(vmi *v1.VirtualMachineInstance) bool {
	return configDriveOf(vmi) != nil && len(tags(vmi)) > 0
}

// WriteDeviceMetadata writes a VMI's config drive again, with the addresses that libvirt assigned to the tagged devices
// when the domain was defined. The domain must not run yet.
func WriteDeviceMetadata(
	ctx context.Context, s Storage, content Content, vmi *v1.VirtualMachineInstance, defined *libvirtxml.Domain,
	into *Result,
) error {
	drive := configDriveOf(vmi)
	p := &preparer{storage: s, content: content, vmi: vmi}
	source := configDrive(drive.CloudInitConfigDrive)
	files, err := p.cloudInitFiles(drive.Name, source, taggedDevices(vmi, defined))
	var fact *domain.DiskFact
	if err == nil {
		fact, err = p.medium(ctx, drive.Name, source.label, files)
	}
	var invalid *InvalidError
	switch {
	case errors.As(err, &invalid):
		invalid.Volume = drive.Name
		return err
	case err != nil:
		return fmt.Errorf("volume %q: %w", drive.Name, err)
	}
	into.Disks[drive.Name] = *fact
	return nil
}

func configDriveOf(vmi *v1.VirtualMachineInstance) *v1.Volume {
	for i := range vmi.Spec.Volumes {
		if vmi.Spec.Volumes[i].CloudInitConfigDrive != nil {
			return &vmi.Spec.Volumes[i]
		}
	}
	return nil
}

// tags returns the tags of devices by the devices' aliases.
func tags(vmi *v1.VirtualMachineInstance) map[string]string {
	found := map[string]string{}
	for i := range vmi.Spec.Domain.Devices.Interfaces {
		if iface := &vmi.Spec.Domain.Devices.Interfaces[i]; iface.Tag != "" {
			found[domain.InterfaceAlias(iface.Name)] = iface.Tag
		}
	}
	for i := range vmi.Spec.Domain.Devices.Disks {
		if disk := &vmi.Spec.Domain.Devices.Disks[i]; disk.Tag != "" {
			found[domain.DiskAlias(disk.Name)] = disk.Tag
		}
	}
	return found
}

// taggedDevices describes the tagged devices of a domain, in its order. Disks are described as in OpenStack: KubeVirt
// accepts their tags but does not describe them.
func taggedDevices(vmi *v1.VirtualMachineInstance, defined *libvirtxml.Domain) []device {
	if defined.Devices == nil {
		return nil
	}
	tagOf := tags(vmi)
	var found []device
	for i := range defined.Devices.Interfaces {
		nic := &defined.Devices.Interfaces[i]
		if nic.Alias == nil || tagOf[nic.Alias.Name] == "" {
			continue
		}
		d := device{Type: "nic", Tags: []string{tagOf[nic.Alias.Name]}}
		d.Bus, d.Address = deviceAddress(nic.Address)
		if nic.MAC != nil {
			d.MAC = hypervisor.Clean(nic.MAC.Address)
		}
		found = append(found, d)
	}
	for i := range defined.Devices.Disks {
		disk := &defined.Devices.Disks[i]
		if disk.Alias == nil || tagOf[disk.Alias.Name] == "" {
			continue
		}
		d := device{Type: "disk", Serial: hypervisor.Clean(disk.Serial), Tags: []string{tagOf[disk.Alias.Name]}}
		d.Bus, d.Address = deviceAddress(disk.Address)
		if d.Bus == driveBus && disk.Target != nil {
			d.Bus = hypervisor.Clean(disk.Target.Bus)
		}
		found = append(found, d)
	}
	return found
}

// driveBus stands for the bus of the disk's target.
const driveBus = "drive"

// deviceAddress returns the bus and the address of a device, empty if it has none.
func deviceAddress(address *libvirtxml.DomainAddress) (bus, at string) {
	value := func(n *uint) uint {
		if n == nil {
			return 0
		}
		return *n
	}
	switch {
	case address == nil:
		return "", ""
	case address.PCI != nil:
		a := address.PCI
		return "pci", fmt.Sprintf("%04x:%02x:%02x.%x", value(a.Domain), value(a.Bus), value(a.Slot), value(a.Function))
	case address.Drive != nil:
		a := address.Drive
		return driveBus, fmt.Sprintf("%d:%d:%d:%d", value(a.Controller), value(a.Bus), value(a.Target), value(a.Unit))
	case address.USB != nil:
		return "usb", fmt.Sprintf("%d:%s", value(address.USB.Bus), hypervisor.Clean(address.USB.Port))
	default:
		return "", ""
	}
}
