// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package controllersuite

import (
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	gomegatypes "github.com/onsi/gomega/types"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/vireo-project/vireo/api/instancetype/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
)

// NewInstancetype returns an instance type with a number of CPUs and 512Mi.
func NewInstancetype(ns, name string, cpus uint32) *v1beta1.VirtualMachineInstancetype {
	return &v1beta1.VirtualMachineInstancetype{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name},
		Spec: v1beta1.VirtualMachineInstancetypeSpec{
			CPU: v1beta1.CPUInstancetype{Guest: cpus}, Memory: v1beta1.MemoryInstancetype{Guest: resource.MustParse("512Mi")},
		},
	}
}

// NewPreference returns a preference with a subdomain.
func NewPreference(ns, name string) *v1beta1.VirtualMachinePreference {
	return &v1beta1.VirtualMachinePreference{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name},
		Spec:       v1beta1.VirtualMachinePreferenceSpec{PreferredSubdomain: ptr.To("preferred")},
	}
}

// WithInstancetype has a VM refer to an instance type of its namespace, and leave CPUs and memory to it.
func WithInstancetype(name string) func(*v1.VirtualMachine) {
	return func(vm *v1.VirtualMachine) {
		vm.Spec.Instancetype = &v1.InstancetypeMatcher{Name: name, Kind: "VirtualMachineInstancetype"}
		vm.Spec.Template.Spec.Domain.CPU, vm.Spec.Template.Spec.Domain.Memory = nil, nil
	}
}

// WithPreference has a VM refer to a preference of its namespace.
func WithPreference(name string) func(*v1.VirtualMachine) {
	return func(vm *v1.VirtualMachine) {
		vm.Spec.Preference = &v1.PreferenceMatcher{Name: name, Kind: "virtualmachinepreferences"}
	}
}

// InstanceOf reads the VMI of a VM.
func InstanceOf(vm *v1.VirtualMachine) *v1.VirtualMachineInstance {
	GinkgoHelper()
	return ExpectExists(InstanceKey(vm))
}

// InstanceKey returns the VMI of a VM, by its name.
func InstanceKey(vm *v1.VirtualMachine) *v1.VirtualMachineInstance {
	return &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: vm.Namespace, Name: vm.Name}}
}

// EditVM updates a VM as its user does.
func EditVM(vm *v1.VirtualMachine, change func(*v1.VirtualMachine)) {
	GinkgoHelper()
	change(ExpectExists(vm))
	Expect(K8sClient.Update(ctx, vm)).To(Succeed())
}

// HaveVMCondition matches a VM with a condition whose message contains a text.
func HaveVMCondition(kind v1.VirtualMachineConditionType, status corev1.ConditionStatus, reason, message string,
) gomegatypes.GomegaMatcher {
	return WithTransform(func(vm *v1.VirtualMachine) string {
		for _, c := range vm.Status.Conditions {
			if c.Type == kind {
				return fmt.Sprintf("%s %s %s", c.Status, c.Reason, c.Message)
			}
		}
		return "none"
	}, And(HavePrefix("%s %s ", status, reason), ContainSubstring(message)))
}
