// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podspec

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/test/builder"
)

// TestPendingNetworks checks by which networks a Pod differs from its VMI, and what becomes of its annotation.
func TestPendingNetworks(t *testing.T) {
	blue := launcherpod.SecondaryInterface("blue")
	absent := func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.Domain.Devices.Interfaces[1].State = v1.InterfaceStateAbsent
	}
	removed := func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.Networks, vmi.Spec.Domain.Devices.Interfaces = vmi.Spec.Networks[:1], vmi.Spec.Domain.Devices.Interfaces[:1]
	}
	selected := `{"name":"blue","namespace":"default","interface":"` + blue + `"}`
	const own = `{"name":"own","namespace":"default","interface":"net7"}`
	for name, tc := range map[string]struct {
		change               func(*v1.VirtualMachineInstance)
		networks             string
		attached, guest      string
		want, wantAnnotation string
	}{
		"the same":                      {nil, "[" + selected + "]", blue, "default blue", "[] [] []", "[" + selected + "]"},
		"a new network":                 {nil, "", "", "default", "[blue] [] []", "[" + selected + "]"},
		"beside another":                {nil, "[" + own + "]", "net7", "default", "[blue] [] []", "[" + own + "," + selected + "]"},
		"beside another in short form":  {nil, "default/own@net7", "net7", "default", "[blue] [] []", "default/own@net7,default/blue@" + blue},
		"requested already":             {nil, "[" + selected + "]", "", "default", "[blue] [] []", "[" + selected + "]"},
		"attached and not in the guest": {nil, "[" + selected + "]", blue, "default", "[] [] []", "[" + selected + "]"},
		"absent, in the guest":          {absent, "[" + selected + "]", blue, "default blue", "[] [] [blue]", "[" + selected + "]"},
		"absent, released":              {absent, "[" + own + "," + selected + "]", "net7 " + blue, "default", "[] [" + blue + "] []", "[" + own + "]"},
		"absent, the only one":          {absent, "[" + selected + "]", blue, "default", "[] [" + blue + "] []", ""},
		"absent, in short form":         {absent, "default/own@net7, default/blue@" + blue, blue, "default", "[] [" + blue + "] []", "default/own@net7"},
		"absent, gone":                  {absent, "[" + own + "]", "net7", "default", "[] [] []", "[" + own + "]"},
		"removed":                       {removed, "[" + selected + "]", blue, "default", "[] [" + blue + "] []", ""},
		"a malformed list":              {absent, "[" + selected, blue, "default", "[] [" + blue + "] []", "[" + selected},
		"another binding": {
			func(vmi *v1.VirtualMachineInstance) { vmi.Spec.Domain.Devices.Interfaces[1].Bridge = nil },
			"", "", "default", "[] [] []", "",
		},
		"another network": {
			func(vmi *v1.VirtualMachineInstance) { vmi.Spec.Networks[1].Multus.NetworkName = "other/red" },
			"[" + selected + "]", blue, "default blue", "[] [] [] [blue]", "[" + selected + "]",
		},
		"another network, in short form": {
			func(vmi *v1.VirtualMachineInstance) { vmi.Spec.Networks[1].Multus.NetworkName = "red" }, "default/blue@" +
				blue, blue, "default blue",
			"[] [] [] [blue]", "default/blue@" + blue,
		},
		"the same network, with its namespace": {
			func(vmi *v1.VirtualMachineInstance) { vmi.Spec.Networks[1].Multus.NetworkName = "default/blue" }, "[" + selected +
				"]", blue, "default blue",
			"[] [] []", "[" + selected + "]",
		},
		"another network of an absent interface": {
			func(vmi *v1.VirtualMachineInstance) {
				absent(vmi)
				vmi.Spec.Networks[1].Multus.NetworkName = "red"
			}, "[" + selected + "]", blue, "default blue", "[] [] [blue]", "[" + selected + "]",
		},
		"another network that is not attached yet": {
			func(vmi *v1.VirtualMachineInstance) { vmi.Spec.Networks[1].Multus.NetworkName = "red" }, "[" + selected +
				"]", "", "default",
			"[blue] [] []", "[" + selected + "]",
		},
		"the default network": {func(vmi *v1.VirtualMachineInstance) { vmi.Spec.Networks[1].Multus.Default = true }, "", "", "default", "[] [] []", ""},
	} {
		t.Run(name, func(t *testing.T) {
			vmi := builder.MakeVMI("vm").Namespace("default").Masquerade().Multus("blue", "blue").Obj()
			if tc.change != nil {
				tc.change(vmi)
			}
			for has := range strings.FieldsSeq(tc.guest) {
				vmi.Status.Interfaces = append(vmi.Status.Interfaces,
					v1.VirtualMachineInstanceNetworkInterface{Name: has, InfoSource: "domain, guest-agent"})
			}
			vmi.Status.Interfaces = append(vmi.Status.Interfaces,
				v1.VirtualMachineInstanceNetworkInterface{InfoSource: "guest-agent"})
			var list []string
			for one := range strings.FieldsSeq(tc.attached) {
				list = append(list, fmt.Sprintf(`{"name":"a","interface":%q,"ips":["10.0.0.1"]}`, one))
			}
			pod := &corev1.Pod{}
			pod.Annotations = map[string]string{networkStatusAnnotation: "[" + strings.Join(list, ",") + "]"}
			if tc.networks != "" {
				pod.Annotations[networksAnnotation] = tc.networks
			}
			changes := PendingNetworks(vmi, pod)
			got := fmt.Sprintf("%v %v %v", changes.Plug, changes.Unplug, changes.Releasing)
			if len(changes.Replace) > 0 {
				got += fmt.Sprintf(" %v", changes.Replace)
			}
			if got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
			if err := ChangeNetworks(pod.Annotations, vmi, changes); err != nil {
				t.Fatal(err)
			}
			if got := pod.Annotations[networksAnnotation]; got != tc.wantAnnotation {
				t.Errorf("the annotation is %s, want %s", got, tc.wantAnnotation)
			}
		})
	}
}

// TestMalformedNetworkStatus checks that an annotation that cannot be read lists no network.
func TestHasNetworks(t *testing.T) {
	made := builder.MakeVMI("vm").Namespace("default").UID("uid").Masquerade().Multus("blue", "blue").Obj()
	for name, tc := range map[string]struct {
		change func(*v1.VirtualMachineInstance)
		want   bool
	}{
		"the same":           {func(*v1.VirtualMachineInstance) {}, true},
		"with its namespace": {func(vmi *v1.VirtualMachineInstance) { vmi.Spec.Networks[1].Multus.NetworkName = "default/blue" }, true},
		"another network":    {func(vmi *v1.VirtualMachineInstance) { vmi.Spec.Networks[1].Multus.NetworkName = "red" }, false},
		"one that is absent": {func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.Domain.Devices.Interfaces[1].State = v1.InterfaceStateAbsent
		}, true},
		"another one": {func(vmi *v1.VirtualMachineInstance) {
			*vmi = *builder.MakeVMI("vm").Namespace("default").Masquerade().Multus("red", "red").Obj()
		}, false},
		"the Pod network only": {func(vmi *v1.VirtualMachineInstance) {
			*vmi = *builder.MakeVMI("vm").Namespace("default").Masquerade().Obj()
		}, true},
	} {
		pod, err := Build(made, Config{LauncherImage: "x"})
		if err != nil {
			t.Fatal(err)
		}
		vmi := made.DeepCopy()
		tc.change(vmi)
		if got := HasNetworks(pod, vmi); got != tc.want {
			t.Errorf("%s: got %t", name, got)
		}
	}
}

func TestMalformedNetworkStatus(t *testing.T) {
	for _, text := range []string{"", "{", `{"interface":"a"}`, "[" + strings.Repeat(" ", maxNetworkStatus) + "]"} {
		pod := &corev1.Pod{}
		pod.Annotations = map[string]string{networkStatusAnnotation: text}
		if got := attachedInterfaces(pod); len(got) > 0 {
			t.Errorf("%.20s lists %v", text, got)
		}
	}
}
