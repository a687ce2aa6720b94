// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstancemigration_test

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/vmistatus"
	"github.com/vireo-project/vireo/test/builder"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

var _ = Describe("A VirtualMachineInstanceMigration with volumes", func() {
	var m *migrations

	BeforeEach(func() {
		m = newMigrations(func(config *clusterconfig.Config) { config.HotplugVolumes = true })
	})

	// runs returns a VMI that runs on a claim with access mode ReadWriteOnce.
	runs := func() *v1.VirtualMachineInstance {
		GinkgoHelper()
		for _, name := range []string{"old", "new"} {
			ExpectCreated(builder.MakePVC(name).Namespace(m.ns).Bound("1Gi").Obj())
		}
		m.host("a")
		vmi := m.assignedTo(m.node("a"), builder.MakeVMI("vm").PVC("data", "old"))
		ReportAsAgent(vmi, func(s *v1.VirtualMachineInstanceStatus) {
			Running(s)
			WithCondition(v1.VirtualMachineInstanceIsMigratable, corev1.ConditionFalse,
				v1.VirtualMachineInstanceReasonDisksNotMigratable, "x")(s)
			WithCondition(v1.VirtualMachineInstanceIsStorageLiveMigratable, corev1.ConditionTrue, "", "")(s)
		})
		return ExpectExists(vmi)
	}
	// recordVolumes and setClaim write what the VM's reconciler writes.
	recordVolumes := func(vmi *v1.VirtualMachineInstance) {
		GinkgoHelper()
		before := ExpectExists(vmi).DeepCopy()
		vmi.Status.MigratedVolumes = []v1.StorageMigratedVolumeInfo{{VolumeName: "data",
			SourcePVCInfo:      &v1.PersistentVolumeClaimInfo{ClaimName: "old"},
			DestinationPVCInfo: &v1.PersistentVolumeClaimInfo{ClaimName: "new"}}}
		_, err := vmistatus.Patch(ctx, K8sClient, vmistatus.Controller, before, vmi)
		Expect(err).NotTo(HaveOccurred())
	}
	setClaim := func(vmi *v1.VirtualMachineInstance, claim string) {
		GinkgoHelper()
		ExpectExists(vmi).Spec.Volumes[0].PersistentVolumeClaim.ClaimName = claim
		Expect(K8sClient.Update(ctx, vmi)).To(Succeed())
	}
	isVolumesChange := func(vmi *v1.VirtualMachineInstance) bool {
		return vmistatus.IsConditionTrue(&ExpectExists(vmi).Status, v1.VirtualMachineInstanceVolumesChange)
	}

	It("starts when the VMI's status and spec are complete, to a Pod with the new claims", func() {
		vmi := runs()
		recordVolumes(vmi)
		vmim := m.request(builder.MakeMigration("go", "vm"))
		m.reconcileAll(vmim)
		Expect(isVolumesChange(vmi)).To(BeFalse())
		ExpectGone(m.target(vmi, vmim))
		Expect(ExpectExists(vmim).Status.Phase).To(Equal(v1.MigrationPending))

		setClaim(vmi, "new")
		m.reconcileAll(vmim)
		Expect(isVolumesChange(vmi)).To(BeTrue())
		target := ExpectExists(m.target(vmi, vmim))
		Expect(claimsOfPod(target)).To(ConsistOf("new"))
		m.setPodStatus(target, "b", builder.MakePodStatus().Running())
		m.reconcileAll(vmim)
		Expect(ExpectExists(vmi).Status.MigrationState.MigrationUID).To(Equal(vmim.UID))

		By("writing the new claims and the new owner in one write")
		Expect(vmistatus.TakeOwnership(ctx, K8sClient, vmi, metav1.Now())).To(Succeed())
		m.reconcileAll(vmim)
		Expect(isVolumesChange(vmi)).To(BeFalse())
		Expect(vmi.Status.MigratedVolumes).To(BeEmpty())
		Expect(vmi.Status.VolumeStatus[0].PersistentVolumeClaimInfo.ClaimName).To(Equal("new"))
	})

	It("fails when the VMI gets an interface after the target's Pod was created", func() {
		vmi := m.assignedTo(m.node("a"), builder.MakeVMI("vm").Masquerade())
		ReportAsAgent(vmi, func(s *v1.VirtualMachineInstanceStatus) {
			Running(s)
			WithCondition(v1.VirtualMachineInstanceIsMigratable, corev1.ConditionTrue, "", "")(s)
		})
		m.host("a")
		vmim := m.request(builder.MakeMigration("go", "vm"))
		m.reconcileAll(vmim)
		target := ExpectExists(m.target(vmi, vmim))
		WithBlueNetwork(&ExpectExists(vmi).Spec)
		Expect(K8sClient.Update(ctx, vmi)).To(Succeed())
		m.reconcileAll(vmim)
		Expect(ExpectExists(vmim).Status.Phase).To(Equal(v1.MigrationFailed))
		Expect(m.recorded.Take()).To(ContainElement(ContainSubstring("got another interface or network")))
		Expect(IsDeleted(target)).To(BeTrue())

		again := m.request(builder.MakeMigration("again", "vm"))
		m.reconcileAll(again)
		m.setPodStatus(ExpectExists(m.target(vmi, again)), "b", builder.MakePodStatus().Running())
		m.reconcileAll(again)
		Expect(ExpectExists(again).Status.Phase).To(Equal(v1.MigrationPreparingTarget))
	})

	It("fails when the volumes change after the target's Pod was created", func() {
		vmi := runs()
		recordVolumes(vmi)
		setClaim(vmi, "new")
		vmim := m.request(builder.MakeMigration("go", "vm"))
		m.reconcileAll(vmim)
		target := ExpectExists(m.target(vmi, vmim))
		m.setPodStatus(target, "b", builder.MakePodStatus().Running())
		setClaim(vmi, "old")
		m.reconcileAll(vmim)
		Expect(ExpectExists(vmim).Status.Phase).To(Equal(v1.MigrationFailed))
		Expect(m.recorded.Take()).To(
			ContainElement(ContainSubstring("the VMI's volumes were changed after the target pod was created")))
		Expect(IsDeleted(target)).To(BeTrue())
		Expect(ExpectExists(vmi).Status.MigrationState).To(BeNil())
	})

	It("fails for a guest that is not migratable for another reason", func() {
		vmi := runs()
		recordVolumes(vmi)
		setClaim(vmi, "new")
		ReportAsAgent(vmi, func(s *v1.VirtualMachineInstanceStatus) {
			WithCondition(v1.VirtualMachineInstanceIsStorageLiveMigratable, corev1.ConditionFalse, "CPUModeLiveMigratable",
				"the CPU")(s)
		})
		vmim := m.request(builder.MakeMigration("go", "vm"))
		m.reconcileAll(vmim)
		Expect(ExpectExists(vmim).Status.Phase).To(Equal(v1.MigrationFailed))
	})

	Context("of which one is being plugged or unplugged", func() {
		var (
			vmi  *v1.VirtualMachineInstance
			vmim *v1.VirtualMachineInstanceMigration
			pod  *corev1.Pod
		)

		// Each spec begins with a target's Pod that runs, while the attachment Pod of the volume data is not ready.
		BeforeEach(func() {
			ExpectCreated(builder.MakePVC("data-claim").Namespace(m.ns).Bound("1Gi").Obj())
			vmi = m.running("a", "vm")
			Plug(vmi, "data", "data-claim")
			vmim = m.request(builder.MakeMigration("go", "vm"))
			m.reconcileAll(vmim)
			Expect(HotpluggedVolume(vmi, "data")).To(HavePrefix("AttachedToNode"))
			pod = AttachmentOf(vmi, "data")
			m.clock.SetTime(m.clock.Now().Add(2 * time.Minute)) // The time that the Pod takes to start does not count.
			m.setPodStatus(m.target(vmi, vmim), "b", builder.MakePodStatus().Running())
			m.reconcileAll(vmim)
		})
		assigned := func() bool {
			GinkgoHelper()
			return ExpectExists(vmi).Status.MigrationState != nil
		}

		It("is assigned to the agents when the guest has it, and says why it waits", func() {
			Expect(assigned()).To(BeFalse(), "the agent may have plugged the volume, and not reported that yet")
			Expect(m.recorded.Take()).To(
				ContainElement("Normal MigrationWaitsForVolumes: The migration go waits until the volume data is plugged"))
			ExpectExists(pod)
			pod.Status = PodIsReady
			Expect(K8sClient.Status().Update(ctx, pod)).To(Succeed())
			m.reconcileAll(vmim)
			Expect(HotpluggedVolume(vmi, "data")).To(HaveSuffix("(ready)"))
			Expect(assigned()).To(BeFalse())
			SetVolumePhase(vmi, "data", v1.VolumeReady, "VolumeReady")
			m.reconcileAll(vmim)
			Expect(assigned()).To(BeTrue())
		})

		It("waits no longer than a minute", func() {
			wait := m.Step(vmim).RequeueAfter
			Expect(wait).To(And(BeNumerically(">", 0), BeNumerically("<=", time.Minute)))
			Expect(assigned()).To(BeFalse())
			m.clock.SetTime(m.clock.Now().Add(wait))
			m.reconcileAll(vmim)
			Expect(assigned()).To(BeTrue())
		})

		DescribeTable("waits until the agent has unplugged a volume that is", func(reached v1.VolumePhase) {
			if reached != v1.HotplugVolumeAttachedToNode {
				SetVolumePhase(vmi, "data", reached, "VolumeReady")
			}
			Unplug(vmi, "data")
			m.recorded.Take()
			m.reconcileAll(vmim)
			Expect(assigned()).To(BeFalse(), "the guest may still have the volume")
			Expect(m.recorded.Take()).To(
				ContainElement("Normal MigrationWaitsForVolumes: The migration go waits until the volume data is unplugged"))
			SetVolumePhase(vmi, "data", v1.HotplugVolumeUnMounted, "VolumeUnMountedFromPod")
			m.reconcileAll(vmim)
			Expect(assigned()).To(BeTrue())
		},
			Entry("attached to the node", v1.HotplugVolumeAttachedToNode),
			Entry("in the launcher Pod", v1.HotplugVolumeMounted),
			Entry("in the guest", v1.VolumeReady),
		)

		It("waits no longer than a minute for a guest that does not release a volume", func() {
			SetVolumePhase(vmi, "data", v1.VolumeReady, "VolumeReady")
			Unplug(vmi, "data")
			m.reconcileAll(vmim)
			Expect(assigned()).To(BeFalse())
			m.clock.SetTime(m.clock.Now().Add(time.Minute))
			m.reconcileAll(vmim)
			Expect(assigned()).To(BeTrue())
		})
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
