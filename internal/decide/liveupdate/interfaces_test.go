// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package liveupdate

import (
	"fmt"
	"strings"
	"testing"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// specWith returns a spec with interfaces, each written as name, binding and state, such as "blue/bridge/absent". Its
// network may have another name: "blue=red". The one named default is on the Pod network.
func specWith(interfaces string) *v1.VirtualMachineInstanceSpec {
	spec := &v1.VirtualMachineInstanceSpec{}
	for text := range strings.FieldsSeq(interfaces) {
		parts := append(strings.Split(text, "/"), "", "")
		parts[0], _, _ = strings.Cut(parts[0], "=")
		on := parts[0]
		if _, other, found := strings.Cut(strings.Split(text, "/")[0], "="); found {
			on = other
		}
		iface, network := v1.Interface{Name: parts[0], State: v1.InterfaceState(parts[2])}, v1.Network{Name: parts[0]}
		switch parts[1] {
		case "", "bridge":
			iface.Bridge = &v1.InterfaceBridge{}
		case "masquerade":
			iface.Masquerade = &v1.InterfaceMasquerade{}
		default:
			iface.Bridge, iface.Model = &v1.InterfaceBridge{}, parts[1]
		}
		network.Multus = &v1.MultusNetwork{NetworkName: on}
		if parts[0] == "default" {
			network.NetworkSource = v1.NetworkSource{Pod: &v1.PodNetwork{}}
		}
		spec.Domain.Devices.Interfaces, spec.Networks = append(spec.Domain.Devices.Interfaces, iface),
			append(spec.Networks, network)
	}
	return spec
}

// TestInterfaces checks which changes of interfaces need a restart, and what becomes of the instance otherwise.
func TestInterfaces(t *testing.T) {
	for name, tc := range map[string]struct {
		// started is the template of the start, has the instance, and now the template.
		started, has, now string
		// inGuest are those that the guest has, wantRestart the fields that need a restart, and want the instance afterwards.
		inGuest, wantRestart, want string
	}{
		"nothing":                        {"default blue", "default blue", "default blue", "", "", "default blue"},
		"one more":                       {"default", "default", "default blue", "", "", "default blue"},
		"one more in front":              {"default", "default", "blue default", "", "", "default blue"},
		"two more":                       {"default green", "default green", "blue default red green", "", "", "default green blue red"},
		"one more that the instance has": {"default", "default blue", "default blue", "", "", "default blue"},
		"and changed since": {
			"default", "default blue", "default blue/e1000", "", "domain.devices.interfaces[blue].model", "",
		},
		"with another binding": {
			"default", "default", "default blue/masquerade", "", "domain.devices.interfaces[blue] networks[blue]", "",
		},
		"on the Pod network": {"blue", "blue", "blue default", "", "domain.devices.interfaces[default] networks[default]", ""},
		"absent":             {"default blue", "default blue", "default blue/bridge/absent", "blue", "", "default blue//absent"},
		"absent and down":    {"default blue//down", "default blue//down", "default blue//absent", "blue", "", "default blue//absent"},
		"absent no more":     {"default blue", "default blue//absent", "default blue", "", "", "default blue"},
		"absent at the start": {
			"default blue//absent", "default blue//absent", "default blue//down", "", "", "default blue//down",
		},
		"removed": {"default blue", "default blue", "default", "", "domain.devices.interfaces[blue] networks[blue]", ""},
		"removed, which the instance has got since": {
			"default", "default blue", "default", "blue", "domain.devices.interfaces[blue] networks[blue]", "",
		},
		"taken back before the guest has it": {"default", "default blue", "default", "", "", "default blue//absent"},
		"removed after it was absent":        {"default blue", "default blue//absent", "default", "", "", "default"},
		"removed while the guest has it": {
			"default blue", "default blue//absent", "default", "blue", "", "default blue//absent",
		},
		"gone":               {"default blue", "default", "default", "", "", "default"},
		"gone and back":      {"default blue", "default", "default blue/e1000", "", "", "default blue/e1000"},
		"gone and back, red": {"blue red", "red", "red blue/e1000", "", "", "red blue/e1000"},
		"another network":    {"default blue", "default blue", "default blue=red", "blue", "", "default blue=red"},
		"another network, absent before": {
			"default blue", "default blue//absent", "default blue=red", "", "", "default blue=red",
		},
		"another network and model": {
			"default blue", "default blue", "default blue=red/e1000", "blue", "domain.devices.interfaces[blue].model", "",
		},
		"another network, with another binding": {
			"default blue/masquerade", "default blue/masquerade", "default blue=red/masquerade", "blue",
			"networks[blue].multus.networkName", "",
		},
		"another order": {"default blue", "default blue", "blue default", "", "domain.devices.interfaces networks", ""},
	} {
		t.Run(name, func(t *testing.T) {
			vmi := &v1.VirtualMachineInstance{Spec: *specWith(tc.has)}
			for inGuest := range strings.FieldsSeq(tc.inGuest) {
				vmi.Status.Interfaces = append(vmi.Status.Interfaces,
					v1.VirtualMachineInstanceNetworkInterface{Name: inGuest, InfoSource: "domain"})
			}
			now := specWith(tc.now)
			if got := strings.Join(NeedRestart(specWith(tc.started), now, vmi, true), " "); got != tc.wantRestart {
				t.Errorf("%s need a restart, want %q", got, tc.wantRestart)
			}
			if tc.wantRestart != "" {
				return
			}
			CopyLinkStates(&vmi.Spec, now)
			CopyInterfaces(&vmi.Spec, now, func(name string) bool { return strings.Contains(tc.inGuest, name) })
			if got, want := fmt.Sprint(describe(&vmi.Spec)), fmt.Sprint(describe(specWith(tc.want))); got != want {
				t.Errorf("the instance has %s, want %s", got, want)
			}
			leaving := len(vmi.Spec.Networks) > len(now.Networks)
			if SameInterfaces(&vmi.Spec, now) == leaving {
				t.Errorf("something is left to copy: want %t", leaving)
			}
		})
	}
	disabled := specWith("default blue")
	disabled.Domain.Devices.DisableHotplug = true
	if IsPluggable(disabled, &disabled.Domain.Devices.Interfaces[1]) {
		t.Error("a guest without hotplug gets an interface")
	}
	if !HasConnected(disabled, "blue") || HasConnected(disabled, "red") || HasConnected(specWith("blue//absent"), "blue") {
		t.Error("wrong interfaces are connected")
	}
}

func describe(spec *v1.VirtualMachineInstanceSpec) []string {
	var all []string
	for i := range spec.Domain.Devices.Interfaces {
		iface := &spec.Domain.Devices.Interfaces[i]
		all = append(all, fmt.Sprintf("%s %s %s %t", iface.Name, iface.Model, iface.State,
			networkOf(spec, iface.Name) != nil))
	}
	return all
}
