// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain

import (
	"fmt"

	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// NICChanges are the interfaces by which a running guest differs from its spec.
type NICChanges struct {
	// Attach are the interfaces of the spec that the guest lacks and that its Pod has.
	Attach []v1.Interface
	// Detach are the interfaces of the guest that are absent in the spec.
	Detach []libvirtxml.DomainInterface
}

// DiffInterfaces compares the interfaces of a spec with those of the running domain. Only those with the bridge binding
// on a network of Multus can change while a guest runs. inPod reports whether the guest's Pod has an interface on a
// network. Interfaces that the spec does not contain are left.
func DiffInterfaces(
	spec *v1.VirtualMachineInstanceSpec, live *libvirtxml.Domain, inPod func(*v1.Network) bool,
) NICChanges {
	has := map[string]*libvirtxml.DomainInterface{}
	if live.Devices != nil {
		for i := range live.Devices.Interfaces {
			has[aliasOf(live.Devices.Interfaces[i].Alias)] = &live.Devices.Interfaces[i]
		}
	}
	networks := map[string]*v1.Network{}
	for i := range spec.Networks {
		networks[spec.Networks[i].Name] = &spec.Networks[i]
	}
	var changes NICChanges
	for i := range spec.Domain.Devices.Interfaces {
		iface := &spec.Domain.Devices.Interfaces[i]
		network, nic := networks[iface.Name], has[InterfaceAlias(iface.Name)]
		switch {
		case network == nil || !network.IsPluggable() || iface.Bridge == nil:
		case iface.State == v1.InterfaceStateAbsent && nic != nil:
			changes.Detach = append(changes.Detach, *nic)
		case iface.State != v1.InterfaceStateAbsent && nic == nil && inPod(network):
			changes.Attach = append(changes.Attach, *iface)
		}
	}
	return changes
}

// Interface returns the device of an interface of the spec, to attach to a running guest.
func Interface(vmi *v1.VirtualMachineInstance, facts Facts, name string) (*libvirtxml.DomainInterface, error) {
	for i := range vmi.Spec.Domain.Devices.Interfaces {
		if iface := &vmi.Spec.Domain.Devices.Interfaces[i]; iface.Name == name {
			return buildInterface(vmi, facts, iface, devicesPath.Child("interfaces").Index(i))
		}
	}
	return nil, fmt.Errorf("the spec has no interface %q", name)
}
