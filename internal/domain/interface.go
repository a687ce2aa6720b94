// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// interfaceModels are the models of spec.domain.devices.interfaces[].model, as in KubeVirt.
var interfaceModels = []string{v1.VirtIO, "e1000", "e1000e", "igb", "ne2k_pci", "pcnet", "rtl8139"}

// InterfaceAlias returns the alias of the interface with a name in spec.domain.devices.interfaces.
func InterfaceAlias(name string) string { return "ua-nic-" + name }

// InterfaceQueues returns the number of queue pairs of an interface. Its tap must have as many: with more than one it
// needs IFF_MULTI_QUEUE.
func InterfaceQueues(vmi *v1.VirtualMachineInstance, iface *v1.Interface) uint {
	if !isTrue(vmi.Spec.Domain.Devices.NetworkInterfaceMultiQueue) || interfaceModel(iface) != v1.VirtIO {
		return 1
	}
	t := topologyOf(&vmi.Spec.Domain)
	return min(t.vcpus(), maxQueues)
}

func interfaceModel(iface *v1.Interface) string {
	if iface.Model == "" {
		return v1.VirtIO
	}
	return iface.Model
}

// configureInterfaces adds the interfaces in the order of the spec.
func configureInterfaces(vmi *v1.VirtualMachineInstance, facts Facts, domain *libvirtxml.Domain) error {
	for i := range vmi.Spec.Domain.Devices.Interfaces {
		iface := &vmi.Spec.Domain.Devices.Interfaces[i]
		if iface.State == v1.InterfaceStateAbsent {
			continue
		}
		out, err := buildInterface(vmi, facts, iface, devicesPath.Child("interfaces").Index(i))
		if err != nil {
			return err
		}
		domain.Devices.Interfaces = append(domain.Devices.Interfaces, *out)
	}
	return nil
}

func buildInterface(
	vmi *v1.VirtualMachineInstance, facts Facts, iface *v1.Interface, path *field.Path,
) (*libvirtxml.DomainInterface, error) {
	if err := checkBinding(iface, path); err != nil {
		return nil, err
	}
	model := interfaceModel(iface)
	if !slices.Contains(interfaceModels, model) {
		return nil, field.NotSupported(path.Child("model"), model, interfaceModels)
	}
	fact, found := facts.Interfaces[iface.Name]
	if !found || fact.Tap == "" {
		return nil, fmt.Errorf("%s: the tap of interface %q is %w", path, iface.Name, ErrNotPrepared)
	}
	out := &libvirtxml.DomainInterface{
		Source: &libvirtxml.DomainInterfaceSource{Ethernet: &libvirtxml.DomainInterfaceSourceEthernet{}},
		// virt-broker creates the tap, because libvirt lacks the capability.
		Target: &libvirtxml.DomainInterfaceTarget{Dev: fact.Tap, Managed: "no"},
		Model:  &libvirtxml.DomainInterfaceModel{Type: model},
		Boot:   bootOrder(iface.BootOrder),
		Alias:  &libvirtxml.DomainAlias{Name: InterfaceAlias(iface.Name)},
	}
	if mac := interfaceMAC(iface, fact); mac != "" {
		out.MAC = &libvirtxml.DomainInterfaceMAC{Address: mac}
	}
	if fact.MTU != 0 {
		out.MTU = &libvirtxml.DomainInterfaceMTU{Size: fact.MTU}
	}
	if model == v1.VirtIO {
		out.Model.Type = virtioModel(vmi)
		out.Driver = interfaceDriver(vmi, facts, iface)
	}
	if iface.BootOrder == nil {
		// Without a boot ROM the firmware does not try to boot from the network.
		out.ROM = &libvirtxml.DomainROM{Enabled: "no"}
	}
	if iface.State == v1.InterfaceStateLinkDown {
		out.Link = &libvirtxml.DomainInterfaceLink{State: "down"}
	}
	return out, placeInterface(iface, path, out)
}

func placeInterface(iface *v1.Interface, path *field.Path, out *libvirtxml.DomainInterface) error {
	if iface.ACPIIndex < 0 {
		return field.Invalid(path.Child("acpiIndex"), iface.ACPIIndex, "must be greater than 0")
	}
	if iface.ACPIIndex > 0 {
		out.ACPI = &libvirtxml.DomainDeviceACPI{Index: uint(iface.ACPIIndex)}
	}
	if iface.PciAddress == "" {
		return nil
	}
	var err error
	out.Address, err = pciAddress(path.Child("pciAddress"), iface.PciAddress)
	return err
}

// interfaceMAC prefers the address of the facts: with the bridge binding it can be the Pod's.
func interfaceMAC(iface *v1.Interface, fact InterfaceFact) string {
	if fact.MAC != "" {
		return fact.MAC
	}
	return iface.MacAddress
}

func interfaceDriver(
	vmi *v1.VirtualMachineInstance, facts Facts, iface *v1.Interface,
) *libvirtxml.DomainInterfaceDriver {
	driver := &libvirtxml.DomainInterfaceDriver{Name: "qemu"}
	if facts.VhostNet && !facts.Emulation {
		driver.Name = "vhost"
	}
	if queues := InterfaceQueues(vmi, iface); queues > 1 {
		driver.Queues = queues
	}
	return driver
}

// checkBinding refuses bindings that do not use a tap.
func checkBinding(iface *v1.Interface, path *field.Path) error {
	const use = "not implemented: use masquerade or bridge"
	switch {
	case iface.SRIOV != nil:
		return field.Forbidden(path.Child("sriov"), use)
	case iface.PasstBinding != nil:
		return field.Forbidden(path.Child("passtBinding"), use)
	case iface.Binding != nil:
		return field.Forbidden(path.Child("binding"), use)
	case iface.DeprecatedSlirp != nil:
		return field.Forbidden(path.Child("slirp"), use)
	case iface.DeprecatedMacvtap != nil:
		return field.Forbidden(path.Child("macvtap"), use)
	case iface.DeprecatedPasst != nil:
		return field.Forbidden(path.Child("passt"), use)
	}
	return nil
}
