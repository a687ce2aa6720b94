// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package controllersuite

import (
	. "github.com/onsi/ginkgo/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/vmistatus"
	"github.com/vireo-project/vireo/test/builder"
)

// LoseNode sets the condition by which virt-controller reports that a VMI's node is lost.
func LoseNode(vmi *v1.VirtualMachineInstance) {
	GinkgoHelper()
	WithCondition(v1.VirtualMachineInstanceNodeUnresponsive, corev1.ConditionTrue, v1.VirtualMachineInstanceReasonNodeLost, "")(&vmi.Status)
	ExpectStatus(vmi)
}

// SetVMIStatus sets a VMI's phase and status fields, whichever component owns them.
func SetVMIStatus(vmi *v1.VirtualMachineInstance, phase v1.VirtualMachineInstancePhase,
	changes ...func(*v1.VirtualMachineInstanceStatus),
) {
	GinkgoHelper()
	ExpectExists(vmi)
	vmistatus.SetPhase(&vmi.Status, phase, metav1.Now())
	for _, change := range changes {
		change(&vmi.Status)
	}
	ExpectStatus(vmi)
}

// WithCondition sets a condition in a VMI's status.
func WithCondition(kind v1.VirtualMachineInstanceConditionType, status corev1.ConditionStatus, reason, message string,
) func(*v1.VirtualMachineInstanceStatus) {
	return func(s *v1.VirtualMachineInstanceStatus) {
		vmistatus.SetCondition(s, v1.VirtualMachineInstanceCondition{
			Type: kind, Status: status, Reason: reason, Message: message,
		}, metav1.Now())
	}
}

// PersistentVMI returns a VMI with a persistent TPM and EFI.
func PersistentVMI() *builder.VMI {
	return builder.MakeVMI("vm").EFI().With(func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.Domain.Devices.TPM = &v1.TPMDevice{Persistent: ptr.To(true)}
		vmi.Spec.Domain.Firmware.Bootloader.EFI.Persistent = ptr.To(true)
	})
}

// PodOf returns the launcher Pod of a VMI, by its name.
func PodOf(vmi *v1.VirtualMachineInstance) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: vmi.Namespace, Name: podspec.PodName(vmi)}}
}

// Running is a status whose guest runs.
func Running(status *v1.VirtualMachineInstanceStatus) {
	vmistatus.SetPhase(status, v1.Running, metav1.Now())
	vmistatus.SetCondition(status, v1.VirtualMachineInstanceCondition{
		Type: v1.VirtualMachineInstanceReady, Status: corev1.ConditionTrue,
	}, metav1.Now())
}

// IsDeleted reports whether the Pod is deleted or being deleted.
func IsDeleted(pod *corev1.Pod) bool {
	err := K8sClient.Get(ctx, client.ObjectKeyFromObject(pod), pod)
	return err != nil || pod.DeletionTimestamp != nil
}
