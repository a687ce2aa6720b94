// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package controller

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/vmistatus"
	"github.com/vireo-project/vireo/test/builder"
)

var _ = Describe("A VirtualMachineInstanceMigration of a guest whose volumes move", func() {
	var m *migrations

	BeforeEach(func() { m = newMigrations() })

	// running leads a VMI on a claim of one node to Running.
	runs := func() *v1.VirtualMachineInstance {
		GinkgoHelper()
		for _, name := range []string{"old", "new"} {
			ExpectCreated(builder.MakePVC(name).Namespace(m.ns).Bound("1Gi").Obj())
		}
		m.host("a")
		vmi := m.assignedTo(m.node("a"), builder.MakeVMI("vm").PVC("data", "old"))
		agent(vmi, func(s *v1.VirtualMachineInstanceStatus) {
			running(s)
			condition(v1.VirtualMachineInstanceIsMigratable, corev1.ConditionFalse, v1.VirtualMachineInstanceReasonDisksNotMigratable, "x")(s)
			condition(v1.VirtualMachineInstanceIsStorageLiveMigratable, corev1.ConditionTrue, "", "")(s)
		})
		return ExpectExists(vmi)
	}
	// note and name are what the VM's reconciler does.
	note := func(vmi *v1.VirtualMachineInstance) {
		GinkgoHelper()
		before := ExpectExists(vmi).DeepCopy()
		vmi.Status.MigratedVolumes = []v1.StorageMigratedVolumeInfo{{VolumeName: "data",
			SourcePVCInfo: &v1.PersistentVolumeClaimInfo{ClaimName: "old"}, DestinationPVCInfo: &v1.PersistentVolumeClaimInfo{ClaimName: "new"}}}
		_, err := vmistatus.Patch(ctx, k8sClient, vmistatus.Controller, before, vmi)
		Expect(err).NotTo(HaveOccurred())
	}
	name := func(vmi *v1.VirtualMachineInstance, claim string) {
		GinkgoHelper()
		ExpectExists(vmi).Spec.Volumes[0].PersistentVolumeClaim.ClaimName = claim
		Expect(k8sClient.Update(ctx, vmi)).To(Succeed())
	}
	asksFor := func(vmi *v1.VirtualMachineInstance) bool {
		return vmistatus.IsConditionTrue(&ExpectExists(vmi).Status, v1.VirtualMachineInstanceVolumesChange)
	}

	It("is asked for once all is said, and goes to a Pod with the new claims", func() {
		vmi := runs()
		note(vmi)
		vmim := m.request(builder.MakeMigration("go", "vm"))
		m.reconcileAll(vmim)
		Expect(asksFor(vmi)).To(BeFalse())
		ExpectGone(m.target(vmi, vmim))
		Expect(ExpectExists(vmim).Status.Phase).To(Equal(v1.MigrationPending))

		name(vmi, "new")
		m.reconcileAll(vmim)
		Expect(asksFor(vmi)).To(BeTrue())
		target := ExpectExists(m.target(vmi, vmim))
		Expect(claimsOfPod(target)).To(ConsistOf("new"))
		m.play(target, "b", builder.MakePodStatus().Running())
		m.reconcileAll(vmim)
		Expect(ExpectExists(vmi).Status.MigrationState.MigrationUID).To(Equal(vmim.UID))

		By("which nobody who sees the new owner takes for the old ones")
		Expect(vmistatus.Claim(ctx, k8sClient, vmi, metav1.Now())).To(Succeed())
		m.reconcileAll(vmim)
		Expect(asksFor(vmi)).To(BeFalse())
		Expect(vmi.Status.MigratedVolumes).To(BeEmpty())
		Expect(vmi.Status.VolumeStatus[0].PersistentVolumeClaimInfo.ClaimName).To(Equal("new"))
	})

	It("fails when the volumes change after its Pod was made", func() {
		vmi := runs()
		note(vmi)
		name(vmi, "new")
		vmim := m.request(builder.MakeMigration("go", "vm"))
		m.reconcileAll(vmim)
		target := ExpectExists(m.target(vmi, vmim))
		m.play(target, "b", builder.MakePodStatus().Running())
		name(vmi, "old")
		m.reconcileAll(vmim)
		Expect(ExpectExists(vmim).Status.Phase).To(Equal(v1.MigrationFailed))
		Expect(m.told.take()).To(ContainElement(ContainSubstring("the VMI's volumes were changed after the target pod was created")))
		Expect(deleted(target)).To(BeTrue())
		Expect(ExpectExists(vmi).Status.MigrationState).To(BeNil())
	})

	It("is refused to a guest that something else ties to its node", func() {
		vmi := runs()
		note(vmi)
		name(vmi, "new")
		agent(vmi, func(s *v1.VirtualMachineInstanceStatus) {
			condition(v1.VirtualMachineInstanceIsStorageLiveMigratable, corev1.ConditionFalse, "CPUModeLiveMigratable", "the CPU")(s)
		})
		vmim := m.request(builder.MakeMigration("go", "vm"))
		m.reconcileAll(vmim)
		Expect(ExpectExists(vmim).Status.Phase).To(Equal(v1.MigrationFailed))
	})
})

func claimsOfPod(pod *corev1.Pod) []string {
	var names []string
	for i := range pod.Spec.Volumes {
		if source := pod.Spec.Volumes[i].PersistentVolumeClaim; source != nil {
			names = append(names, source.ClaimName)
		}
	}
	return names
}
