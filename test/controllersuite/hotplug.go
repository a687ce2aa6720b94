// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package controllersuite

import (
	"slices"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/vmistatus"
	"github.com/vireo-project/vireo/test/builder"
)

// ChangeVMISpec changes the spec of a VMI as its VM does.
func ChangeVMISpec(vmi *v1.VirtualMachineInstance, do func(*v1.VirtualMachineInstanceSpec)) {
	GinkgoHelper()
	ExpectExists(vmi)
	do(&vmi.Spec)
	Expect(K8sClient.Update(ctx, vmi)).To(Succeed())
}

// Plug adds a hotpluggable volume to a VMI.
func Plug(vmi *v1.VirtualMachineInstance, name, claim string) {
	GinkgoHelper()
	with := builder.MakeVMI("x").Hotpluggable(name, claim).Obj()
	ChangeVMISpec(vmi, func(spec *v1.VirtualMachineInstanceSpec) {
		spec.Volumes = append(spec.Volumes, with.Spec.Volumes...)
		spec.Domain.Devices.Disks = append(spec.Domain.Devices.Disks, with.Spec.Domain.Devices.Disks...)
	})
}

// Unplug removes a volume and its disk from a VMI.
func Unplug(vmi *v1.VirtualMachineInstance, name string) {
	GinkgoHelper()
	ChangeVMISpec(vmi, func(spec *v1.VirtualMachineInstanceSpec) {
		spec.Volumes = slices.DeleteFunc(spec.Volumes, func(v v1.Volume) bool { return v.Name == name })
		disks := &spec.Domain.Devices.Disks
		*disks = slices.DeleteFunc(*disks, func(d v1.Disk) bool { return d.Name == name })
	})
}

// HotpluggedVolume returns "phase reason: message" of a hotplugged volume, with "(ready)" if it is attached to the
// node, or "none".
func HotpluggedVolume(vmi *v1.VirtualMachineInstance, name string) string {
	GinkgoHelper()
	status := vmistatus.FindVolume(&ExpectExists(vmi).Status, name)
	if !vmistatus.IsHotplugged(status) {
		return "none"
	}
	out := string(status.Phase) + " " + status.Reason + ": " + status.Message
	if vmistatus.IsAttachedToNode(status) {
		out += " (ready)"
	}
	return out
}

// SetVolumePhase writes a phase of a hotplugged volume as the agent does.
func SetVolumePhase(vmi *v1.VirtualMachineInstance, name string, to v1.VolumePhase, reason string) {
	GinkgoHelper()
	ExpectExists(vmi)
	ReportAsAgent(vmi, func(status *v1.VirtualMachineInstanceStatus) {
		of := vmistatus.FindVolume(status, name)
		of.Phase, of.Reason, of.Message = to, reason, ""
	})
}

// AttachmentOf returns the attachment Pod of a volume.
func AttachmentOf(vmi *v1.VirtualMachineInstance, name string) *corev1.Pod {
	launcher := ExpectExists(PodOf(vmi))
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: vmi.Namespace, Name: podspec.AttachmentName(launcher.UID, name),
	}}
}

// PodIsReady is the status of a Pod that runs and is ready.
var PodIsReady = corev1.PodStatus{
	Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
}
