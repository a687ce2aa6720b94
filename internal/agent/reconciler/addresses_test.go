// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package reconciler

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

func TestAddressesAfterMigration(t *testing.T) {
	pod := v1.NetworkSource{Pod: &v1.PodNetwork{}}
	multus := v1.NetworkSource{Multus: &v1.MultusNetwork{NetworkName: "blue"}}
	masquerade := v1.InterfaceBindingMethod{Masquerade: &v1.InterfaceMasquerade{}}
	bridge := v1.InterfaceBindingMethod{Bridge: &v1.InterfaceBridge{}}
	vmi := &v1.VirtualMachineInstance{}
	add := func(name string, binding v1.InterfaceBindingMethod, network v1.NetworkSource) {
		vmi.Spec.Domain.Devices.Interfaces = append(vmi.Spec.Domain.Devices.Interfaces, v1.Interface{Name: name, InterfaceBindingMethod: binding})
		vmi.Spec.Networks = append(vmi.Spec.Networks, v1.Network{Name: name, NetworkSource: network})
	}
	message := func() string {
		setMigratable(vmi, metav1.Time{})
		return vmistatus.FindCondition(&vmi.Status, v1.VirtualMachineInstanceIsMigratable).Message
	}

	if got := message(); got != "" {
		t.Errorf("message without interfaces: %q", got)
	}
	add("default", masquerade, pod)
	add("data", bridge, multus)
	want := "interface default keeps its address inside the guest; from outside, that of the new Pod leads to it; interface data keeps its address"
	if got := message(); got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	vmi.Spec.Domain.Devices.Interfaces[0].InterfaceBindingMethod = bridge
	if got, want := message(), "cannot migrate VMI: interface default has the Pod's address by its bridge binding, which cannot move"; got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	vmi.Annotations = map[string]string{v1.AllowPodBridgeNetworkLiveMigrationAnnotation: ""}
	want = "interface default gets the address of the new Pod, once the guest asks for one again; interface data keeps its address"
	if got := message(); got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}
