// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
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
		vmi.Spec.Domain.Devices.Interfaces = append(vmi.Spec.Domain.Devices.Interfaces,
			v1.Interface{Name: name, InterfaceBindingMethod: binding})
		vmi.Spec.Networks = append(vmi.Spec.Networks, v1.Network{Name: name, NetworkSource: network})
	}
	expect := func(status corev1.ConditionStatus, parts ...string) {
		t.Helper()
		setMigratable(vmi, metav1.Time{})
		condition := vmistatus.FindCondition(&vmi.Status, v1.VirtualMachineInstanceIsMigratable)
		if condition.Status != status || (condition.Message == "") != (len(parts) == 0) {
			t.Errorf("got %+v, want %s and %q", condition, status, parts)
		}
		for _, part := range parts {
			if !strings.Contains(condition.Message, part) {
				t.Errorf("%q is not in %q", part, condition.Message)
			}
		}
	}

	expect(corev1.ConditionTrue)
	add("default", masquerade, pod)
	add("data", bridge, multus)
	expect(corev1.ConditionTrue, "interface default keeps its address inside the guest",
		"interface data keeps its address")
	vmi.Spec.Domain.Devices.Interfaces[0].InterfaceBindingMethod = bridge
	expect(corev1.ConditionFalse, "interface default")
	vmi.Annotations = map[string]string{v1.AllowPodBridgeNetworkLiveMigrationAnnotation: ""}
	expect(corev1.ConditionTrue, "interface default gets the address of the new Pod", "interface data keeps its address")
}
