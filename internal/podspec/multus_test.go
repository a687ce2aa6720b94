// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podspec_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/test/builder"
)

const networksAnnotation = "k8s.v1.cni.cncf.io/networks"

func TestAbsentInterfacesAreNotAttached(t *testing.T) {
	cfg := config()
	cfg.NetworkResources = map[string]corev1.ResourceName{"blue": "example.com/blue", "red": "example.com/red"}
	vmi := makeVMI().Masquerade().Multus("blue", "blue").Multus("red", "red").With(func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.Domain.Devices.Interfaces[1].State = v1.InterfaceStateAbsent
	})
	pod, err := podspec.Build(vmi.Obj(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := pod.Annotations[networksAnnotation], `[{"name":"red","namespace":"default","interface":"podb1f51a511f1"}]`; got != want {
		t.Errorf("requested %s, want %s", got, want)
	}
	resources := pod.Spec.Containers[0].Resources
	if _, found := resources.Requests["example.com/blue"]; found {
		t.Error("a device is taken for an absent interface")
	}
	if one := resources.Limits["example.com/red"]; one.Value() != 1 {
		t.Errorf("red's devices: %s", one.String())
	}
}

// Without secondary networks the user's annotation does not change.
func TestNetworksAnnotation(t *testing.T) {
	for name, tc := range map[string]struct {
		vmi  *builder.VMI
		want string
	}{
		"none":         {makeVMI().Masquerade(), ""},
		"the user's":   {makeVMI().Masquerade().Annotation(networksAnnotation, "extra"), "extra"},
		"the networks": {makeVMI().Multus("blue", "blue").Annotation(networksAnnotation, "extra"), `[{"name":"blue","namespace":"default","interface":"pod16477688c0e"}]`},
	} {
		t.Run(name, func(t *testing.T) {
			pod, err := podspec.Build(tc.vmi.Obj(), config())
			if err != nil {
				t.Fatal(err)
			}
			if got := pod.Annotations[networksAnnotation]; got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}
