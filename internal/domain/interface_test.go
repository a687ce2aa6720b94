// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain_test

import (
	"testing"

	"k8s.io/utils/ptr"
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/domain"
)

// nicDevice returns the virtio interface of masquerade().
func nicDevice(change func(*libvirtxml.DomainInterface)) []libvirtxml.DomainInterface {
	iface := libvirtxml.DomainInterface{
		MAC:    &libvirtxml.DomainInterfaceMAC{Address: "02:00:00:00:00:01"},
		Source: &libvirtxml.DomainInterfaceSource{Ethernet: &libvirtxml.DomainInterfaceSourceEthernet{}},
		Target: &libvirtxml.DomainInterfaceTarget{Dev: "tap0", Managed: "no"},
		Model:  &libvirtxml.DomainInterfaceModel{Type: "virtio-non-transitional"},
		Driver: &libvirtxml.DomainInterfaceDriver{Name: "qemu"},
		MTU:    &libvirtxml.DomainInterfaceMTU{Size: 1450},
		ROM:    &libvirtxml.DomainROM{Enabled: "no"},
		Alias:  &libvirtxml.DomainAlias{Name: "ua-nic-default"},
	}
	if change != nil {
		change(&iface)
	}
	return []libvirtxml.DomainInterface{iface}
}

func withNIC(change func(*v1.Interface)) *guest {
	return makeGuest().masquerade().devices(func(d *v1.Devices) { change(&d.Interfaces[0]) })
}

func TestInterfaces(t *testing.T) {
	for name, tc := range map[string]struct {
		guest *guest
		want  []libvirtxml.DomainInterface
	}{
		"none":   {makeGuest(), nil},
		"virtio": {makeGuest().masquerade(), nicDevice(nil)},
		"bridge": {withNIC(func(i *v1.Interface) {
			i.InterfaceBindingMethod = v1.InterfaceBindingMethod{Bridge: &v1.InterfaceBridge{}}
		}), nicDevice(nil)},
		"another model": {withNIC(func(i *v1.Interface) { i.Model = "e1000e" }),
			nicDevice(func(i *libvirtxml.DomainInterface) {
				i.Model.Type, i.Driver = "e1000e", nil
			})},
		"PCI address": {withNIC(func(i *v1.Interface) { i.PciAddress = "0000:81:01.0" }),
			nicDevice(func(i *libvirtxml.DomainInterface) {
				i.Address = &libvirtxml.DomainAddress{PCI: &libvirtxml.DomainAddressPCI{
					Domain: ptr.To[uint](0), Bus: ptr.To[uint](0x81), Slot: ptr.To[uint](1), Function: ptr.To[uint](0),
				}}
			})},
		// As in KubeVirt, only virtio has queues.
		"multi-queue of another model": {multiQueue(4).devices(func(d *v1.Devices) { d.Interfaces[0].Model = "igb" }),
			nicDevice(func(i *libvirtxml.DomainInterface) { i.Model.Type, i.Driver = "igb", nil })},
		"multi-queue with vhost": {multiQueue(4).kvm(), nicDevice(func(i *libvirtxml.DomainInterface) {
			i.Driver.Name, i.Driver.Queues = "vhost", 4
		})},
		"vhost":                 {makeGuest().masquerade().kvm(), nicDevice(func(i *libvirtxml.DomainInterface) { i.Driver.Name = "vhost" })},
		"no vhost in emulation": {makeGuest().masquerade().on(func(f *domain.Facts) { f.VhostNet = true }), nicDevice(nil)},
		"boots": {withNIC(func(i *v1.Interface) { i.BootOrder = ptr.To[uint](1) }),
			nicDevice(func(i *libvirtxml.DomainInterface) {
				i.ROM, i.Boot = nil, &libvirtxml.DomainDeviceBoot{Order: 1}
			})},
		"ACPI index": {withNIC(func(i *v1.Interface) { i.ACPIIndex = 7 }), nicDevice(func(i *libvirtxml.DomainInterface) {
			i.ACPI = &libvirtxml.DomainDeviceACPI{Index: 7}
		})},
		"link down": {withNIC(func(i *v1.Interface) { i.State = v1.InterfaceStateLinkDown }),
			nicDevice(func(i *libvirtxml.DomainInterface) {
				i.Link = &libvirtxml.DomainInterfaceLink{State: "down"}
			})},
		"link up":                           {withNIC(func(i *v1.Interface) { i.State = v1.InterfaceStateLinkUp }), nicDevice(nil)},
		"absent":                            {withNIC(func(i *v1.Interface) { i.State = v1.InterfaceStateAbsent }), nil},
		"the agent's MAC before the spec's": {withNIC(func(i *v1.Interface) { i.MacAddress = "02:00:00:00:00:99" }), nicDevice(nil)},
		"the spec's MAC, any MTU": {withNIC(func(i *v1.Interface) { i.MacAddress = "02:00:00:00:00:99" }).
			on(func(f *domain.Facts) { f.Interfaces["default"] = domain.InterfaceFact{Tap: "tap0"} }),
			nicDevice(func(i *libvirtxml.DomainInterface) { i.MAC.Address, i.MTU = "02:00:00:00:00:99", nil })},
		"transitional": {makeGuest().masquerade().devices(func(d *v1.Devices) { d.UseVirtioTransitional = ptr.To(true) }),
			nicDevice(func(i *libvirtxml.DomainInterface) { i.Model.Type = "virtio-transitional" })},
		"multi-queue":               {multiQueue(4), nicDevice(func(i *libvirtxml.DomainInterface) { i.Driver.Queues = 4 })},
		"multi-queue with one vCPU": {multiQueue(1), nicDevice(nil)},
	} {
		t.Run(name, func(t *testing.T) { expectEqual(t, tc.guest.build(t).Devices.Interfaces, tc.want) })
	}
}

func TestInterfaceModels(t *testing.T) {
	for model, want := range map[string]string{
		"": "virtio-non-transitional", "virtio": "virtio-non-transitional", "e1000": "e1000", "e1000e": "e1000e", "igb": "igb",
		"ne2k_pci": "ne2k_pci", "pcnet": "pcnet", "rtl8139": "rtl8139",
	} {
		t.Run(model, func(t *testing.T) {
			got := withNIC(func(i *v1.Interface) { i.Model = model }).build(t).Devices.Interfaces[0]
			if got.Model.Type != want || (got.Driver != nil) != (want == "virtio-non-transitional") {
				t.Errorf("the model is %s with the driver %v", got.Model.Type, got.Driver)
			}
		})
	}
}

func multiQueue(cores uint32) *guest {
	return makeGuest().masquerade().domainSpec(func(d *v1.DomainSpec) {
		d.CPU, d.Devices.NetworkInterfaceMultiQueue = &v1.CPU{Cores: cores}, ptr.To(true)
	})
}

func TestInterfaceQueues(t *testing.T) {
	g := multiQueue(4)
	iface := &g.vmi.Spec.Domain.Devices.Interfaces[0]
	expectEqual(t, domain.InterfaceQueues(g.vmi, iface), 4)
	iface.Model = "e1000"
	expectEqual(t, domain.InterfaceQueues(g.vmi, iface), 1)
}

func TestInterfaceRefused(t *testing.T) {
	const path = "spec.domain.devices.interfaces[0]"
	for field, tc := range map[string]struct {
		change func(*v1.Interface)
		hint   string
	}{
		path + ".model":        {func(i *v1.Interface) { i.Model = "ne1000" }, "rtl8139"},
		path + ".sriov":        {func(i *v1.Interface) { i.SRIOV = &v1.InterfaceSRIOV{} }, "masquerade"},
		path + ".passtBinding": {func(i *v1.Interface) { i.PasstBinding = &v1.InterfacePasstBinding{} }, "masquerade"},
		path + ".binding":      {func(i *v1.Interface) { i.Binding = &v1.PluginBinding{} }, "masquerade"},
		path + ".slirp":        {func(i *v1.Interface) { i.DeprecatedSlirp = &v1.DeprecatedInterfaceSlirp{} }, "masquerade"},
		path + ".macvtap": {func(i *v1.Interface) { i.DeprecatedMacvtap = &v1.DeprecatedInterfaceMacvtap{} },
			"masquerade"},
		path + ".passt":     {func(i *v1.Interface) { i.DeprecatedPasst = &v1.DeprecatedInterfacePasst{} }, "masquerade"},
		path + ".acpiIndex": {func(i *v1.Interface) { i.ACPIIndex = -1 }, "greater than 0"},
	} {
		t.Run(field, func(t *testing.T) { withNIC(tc.change).expectRefused(t, field, tc.hint) })
	}
	makeGuest().masquerade().on(func(f *domain.Facts) { f.Interfaces = nil }).expectNotPrepared(t, path)
}
