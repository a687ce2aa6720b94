// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstance_test

import (
	"fmt"
	"slices"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/vmistatus"
	"github.com/vireo-project/vireo/test/builder"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

var _ = Describe("VirtualMachineInstance with many hotplugged volumes", func() {
	It("plugs and unplugs them with one write of the status for all that has changed", func() {
		const many = 12
		w := newPlugWorld()
		var names []string
		with := builder.MakeVMI("x")
		for i := range many {
			name := fmt.Sprintf("data-%02d", i)
			names = append(names, name)
			with = with.Hotpluggable(name, name)
			if i > 0 { // The claim of the first volume does not exist.
				w.claim(builder.MakePVC(name).Bound("1Gi"))
			}
		}
		vmi := w.runs(builder.MakeVMI("vm").ContainerDisk("root", "registry.example/debian:13"))
		w.expectQuiet(vmi)
		ChangeVMISpec(vmi, func(spec *v1.VirtualMachineInstanceSpec) {
			spec.Volumes = append(spec.Volumes, with.Obj().Spec.Volumes...)
			spec.Domain.Devices.Disks = append(spec.Domain.Devices.Disks, with.Obj().Spec.Domain.Devices.Disks...)
		})
		w.ExpectBudget(vmi, append(slices.Repeat([]string{"create Pod"}, many-1), "patch VirtualMachineInstance/status")...)
		Expect(HotpluggedVolume(vmi, names[0])).To(Equal("Pending FailedPvcNotFound: PVC data-00 not found"))
		w.events.Take()
		w.expectQuiet(vmi)

		By("some Pods that get ready")
		for _, name := range names[1:6] {
			w.setAttachment(vmi, name, PodIsReady)
		}
		w.ExpectBudget(vmi, "patch VirtualMachineInstance/status")
		ExpectExists(vmi)
		for i, name := range names[1:] {
			Expect(vmistatus.IsAttachedToNode(vmistatus.FindVolume(&vmi.Status, name))).To(Equal(i < 5), name)
		}
		w.expectQuiet(vmi)

		By("the others, and one that fails")
		for _, name := range names[6:11] {
			w.setAttachment(vmi, name, PodIsReady)
		}
		w.setAttachment(vmi, names[11], builder.MakePodStatus().Unschedulable("0/1 nodes are available").Obj())
		w.Step(vmi)
		ExpectExists(vmi)
		for _, name := range names[1:11] {
			Expect(vmistatus.IsAttachedToNode(vmistatus.FindVolume(&vmi.Status, name))).To(BeTrue(), name)
		}
		ReportAsAgent(vmi, func(status *v1.VirtualMachineInstanceStatus) {
			for i := range status.VolumeStatus {
				if v := &status.VolumeStatus[i]; vmistatus.IsAttachedToNode(v) {
					v.Phase, v.Reason, v.Message = v1.VolumeReady, "VolumeReady", ""
				}
			}
		})
		w.events.Take()
		w.expectQuiet(vmi)

		By("unplugging all")
		ChangeVMISpec(vmi, func(spec *v1.VirtualMachineInstanceSpec) {
			spec.Volumes, spec.Domain.Devices.Disks = spec.Volumes[:1], spec.Domain.Devices.Disks[:1]
		})
		ReportAsAgent(vmi, func(status *v1.VirtualMachineInstanceStatus) {
			for i := range status.VolumeStatus {
				if v := &status.VolumeStatus[i]; vmistatus.IsHotplugged(v) && v.Phase != v1.VolumePending {
					v.Phase, v.Reason, v.Message = v1.HotplugVolumeUnMounted, "VolumeUnMountedFromPod", ""
				}
			}
		})
		var pods []*corev1.Pod
		for _, name := range names[1:] {
			pods = append(pods, ExpectExists(AttachmentOf(vmi, name)))
		}
		w.ExpectBudget(vmi, append(slices.Repeat([]string{"delete Pod"}, many-1), "patch VirtualMachineInstance/status")...)
		for _, pod := range pods {
			ExpectGone(pod)
		}
		w.Step(vmi)
		for _, name := range names {
			Expect(HotpluggedVolume(vmi, name)).To(Equal("none"))
		}
		w.events.Take()
		w.expectQuiet(vmi)
	})
})
