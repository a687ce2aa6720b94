// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain

import (
	"strings"
	"testing"

	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/test/builder"
)

// TestDiffInterfaces checks which interfaces are plugged into a running guest and unplugged.
func TestDiffInterfaces(t *testing.T) {
	const absent = v1.InterfaceStateAbsent
	for name, tc := range map[string]struct {
		change               func(*v1.VirtualMachineInstanceSpec)
		has, pod             string
		wantAttach, wantLose string
	}{
		"nothing":                  {nil, "default blue", "blue", "", ""},
		"a new one":                {nil, "default", "blue", "blue", ""},
		"one that the Pod lacks":   {nil, "default", "", "", ""},
		"one that is absent":       {func(s *v1.VirtualMachineInstanceSpec) { s.Domain.Devices.Interfaces[1].State = absent }, "default blue", "blue", "", "blue"},
		"one that is gone":         {func(s *v1.VirtualMachineInstanceSpec) { s.Domain.Devices.Interfaces[1].State = absent }, "default", "blue", "", ""},
		"one that is down":         {func(s *v1.VirtualMachineInstanceSpec) { s.Domain.Devices.Interfaces[1].State = "down" }, "default", "blue", "blue", ""},
		"one on the Pod network":   {nil, "blue", "blue", "", ""},
		"another device":           {nil, "default blue green", "blue", "", ""},
		"of the primary network":   {func(s *v1.VirtualMachineInstanceSpec) { s.Networks[1].Multus.Default = true }, "default", "blue", "", ""},
		"without a network":        {func(s *v1.VirtualMachineInstanceSpec) { s.Networks = s.Networks[:1] }, "default", "blue", "", ""},
		"with another binding":     {func(s *v1.VirtualMachineInstanceSpec) { s.Domain.Devices.Interfaces[1].Bridge = nil }, "default", "blue", "", ""},
		"a domain without devices": {nil, "", "", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			vmi := builder.MakeVMI("vm").Masquerade().Multus("blue", "blue").Obj()
			if tc.change != nil {
				tc.change(&vmi.Spec)
			}
			live := &libvirtxml.Domain{}
			for alias := range strings.FieldsSeq(tc.has) {
				if live.Devices == nil {
					live.Devices = &libvirtxml.DomainDeviceList{}
				}
				live.Devices.Interfaces = append(live.Devices.Interfaces,
					libvirtxml.DomainInterface{Alias: &libvirtxml.DomainAlias{Name: InterfaceAlias(alias)}})
			}
			changes := DiffInterfaces(&vmi.Spec, live, func(n *v1.Network) bool { return strings.Contains(tc.pod, n.Name) })
			var attach, lose []string
			for i := range changes.Attach {
				attach = append(attach, changes.Attach[i].Name)
			}
			for i := range changes.Detach {
				lose = append(lose, strings.TrimPrefix(changes.Detach[i].Alias.Name, InterfaceAlias("")))
			}
			if strings.Join(attach, " ") != tc.wantAttach || strings.Join(lose, " ") != tc.wantLose {
				t.Errorf("attach %v, detach %v, want %q and %q", attach, lose, tc.wantAttach, tc.wantLose)
			}
		})
	}
}

// TestInterface checks that an interface to attach is that with which a guest starts.
func TestInterface(t *testing.T) {
	vmi := builder.MakeVMI("vm").Masquerade().Multus("blue", "blue").Obj()
	facts := Facts{Interfaces: map[string]InterfaceFact{"blue": {Tap: "tap1", MAC: "02:00:00:00:00:02", MTU: 1400}}}
	nic, err := Interface(vmi, facts, "blue")
	if err != nil || nic.Alias.Name != "ua-nic-blue" || nic.Target.Dev != "tap1" ||
		nic.MAC.Address != "02:00:00:00:00:02" || nic.MTU.Size != 1400 {
		t.Errorf("got %+v, %v", nic, err)
	}
	if _, err := Interface(vmi, facts, "green"); err == nil {
		t.Error("an interface that the spec does not have has a device")
	}
}
