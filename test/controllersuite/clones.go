// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package controllersuite

import (
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	clonev1beta1 "github.com/vireo-project/vireo/api/clone/v1beta1"
)

// CloneSucceeded is what DescribeClone returns of a clone that has succeeded.
const CloneSucceeded = "Succeeded; Progressing=False Ready; Ready=True Ready"

// RequestClone creates a clone of the VM in a namespace of a Restorable.
func RequestClone(
	ns, name string, changes ...func(*clonev1beta1.VirtualMachineCloneSpec),
) *clonev1beta1.VirtualMachineClone {
	GinkgoHelper()
	of := &clonev1beta1.VirtualMachineClone{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}}
	vm := corev1.TypedLocalObjectReference{APIGroup: ptr.To("kubevirt.io"), Kind: "VirtualMachine", Name: "vm"}
	of.Spec.Source, of.Spec.Target = vm.DeepCopy(), vm.DeepCopy()
	of.Spec.Target.Name = "copy"
	for _, change := range changes {
		change(&of.Spec)
	}
	ExpectCreated(of)
	return of
}

// FromSnapshot makes the snapshot of a Restorable the source of a clone.
func FromSnapshot(spec *clonev1beta1.VirtualMachineCloneSpec) {
	spec.Source = &corev1.TypedLocalObjectReference{
		APIGroup: ptr.To("snapshot.kubevirt.io"), Kind: "VirtualMachineSnapshot", Name: "snap",
	}
}

// DescribeClone formats phase and conditions of a clone.
func DescribeClone(of *clonev1beta1.VirtualMachineClone) string {
	GinkgoHelper()
	out := string(ExpectExists(of).Status.Phase)
	for _, c := range of.Status.Conditions {
		out += fmt.Sprintf("; %s=%s %s", c.Type, c.Status, c.Reason)
		if c.Message != "" {
			out += " (" + c.Message + ")"
		}
	}
	return out
}
