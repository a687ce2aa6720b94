// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachine_test

import (
	"errors"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/vmistatus"
	"github.com/vireo-project/vireo/test/builder"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

const gibibyte = 1 << 30

var _ = Describe("VirtualMachine with replaced claims", func() {
	var m *vmHarness

	BeforeEach(func() { m = newVMHarness() })

	// claim creates a claim in the VM's namespace.
	claim := func(name, capacity string) {
		GinkgoHelper()
		ExpectCreated(builder.MakePVC(name).Namespace(m.ns).Bound(capacity).Obj())
	}
	// described reports the size of the disk, and that the guest can migrate with its storage only, as the agent does.
	described := func(s *v1.VirtualMachineInstanceStatus) {
		s.VolumeStatus = []v1.VolumeStatus{{Name: "data", Size: gibibyte,
			PersistentVolumeClaimInfo: &v1.PersistentVolumeClaimInfo{
				ClaimName: "old", AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			}}}
		WithCondition(v1.VirtualMachineInstanceIsMigratable, corev1.ConditionFalse,
			v1.VirtualMachineInstanceReasonDisksNotMigratable, "not shared")(s)
		WithCondition(v1.VirtualMachineInstanceIsStorageLiveMigratable, corev1.ConditionTrue, "", "")(s)
	}
	runs := func(strategy v1.UpdateVolumesStrategy) (*v1.VirtualMachine, *v1.VirtualMachineInstance) {
		GinkgoHelper()
		claim("old", "1Gi")
		vm := m.create(builder.MakeVM("vm").Template(builder.MakeVMI("vm").PVC("data", "old")).With(
			func(vm *v1.VirtualMachine) {
				vm.Spec.UpdateVolumesStrategy = ptr.To(strategy)
			}))
		m.Step(vm)
		vmi := InstanceOf(vm)
		SetVMIStatus(vmi, v1.Running, Running, revised(vmi), described)
		m.Step(vm)
		m.events.Take()
		return ExpectExists(vm), vmi
	}
	use := func(vm *v1.VirtualMachine, claim string) {
		GinkgoHelper()
		changeTemplate(vm, func(t *v1.VirtualMachineInstanceTemplateSpec) {
			t.Spec.Volumes[0].PersistentVolumeClaim.ClaimName = claim
		})
	}
	names := func(vm *v1.VirtualMachine) string {
		GinkgoHelper()
		return InstanceOf(vm).Spec.Volumes[0].PersistentVolumeClaim.ClaimName
	}
	// moving returns a VM whose VMI waits for its migration to another claim.
	moving := func() (*v1.VirtualMachine, *v1.VirtualMachineInstance) {
		GinkgoHelper()
		vm, _ := runs(v1.UpdateVolumesStrategyMigration)
		claim("new", "2Gi")
		use(vm, "new")
		m.Step(vm)
		Expect(names(vm)).To(Equal("old"))
		// The status has the guest's claims before the spec names others: nothing else records them.
		m.ExpectOrder(vm, "patch VirtualMachineInstance/status", patchInstance)
		m.events.Take()
		m.expectQuiet(vm)
		return ExpectExists(vm), InstanceOf(vm)
	}
	migrating := func(s *v1.VirtualMachineInstanceStatus) {
		s.NodeName = "here"
		s.MigrationState = &v1.VirtualMachineInstanceMigrationState{
			MigrationUID: "uid", SourceNode: "here", TargetNode: "there", SourcePod: "from", TargetPod: "to",
		}
	}

	It("records the source claims in status.migratedVolumes before it changes the VMI's volumes, and removes them after the migration", func() {
		vm, vmi := moving()
		Expect(vmi.Status.MigratedVolumes).To(HaveLen(1))
		moved := vmi.Status.MigratedVolumes[0]
		Expect(moved.VolumeName + " " + moved.SourcePVCInfo.ClaimName + " " + moved.DestinationPVCInfo.ClaimName).
			To(Equal("data old new"))
		Expect(moved.DestinationPVCInfo.Capacity.Storage().Equal(resource.MustParse("2Gi"))).To(BeTrue())
		Expect(vmi.Spec.Volumes[0].PersistentVolumeClaim.ClaimName).To(Equal("new"))
		Expect(vm.Status.VolumeUpdateState.VolumeMigrationState.MigratedVolumes).To(Equal(vmi.Status.MigratedVolumes))
		Expect(vm).To(haveNoVMCondition(v1.VirtualMachineRestartRequired))
		Expect(generationsOf(vm)).To(Equal("generation 2 desired 2 observed 1 instance 1"))

		SetVMIStatus(vmi, v1.Running, migrating)
		m.ExpectSteady(vm)
		Expect(vmistatus.TakeOwnership(ctx, K8sClient, ExpectExists(vmi), metav1.Now())).To(Succeed())
		ExpectExists(vmi)
		Expect(vmi.Status.MigratedVolumes).To(BeEmpty())
		Expect(vmi.Status.VolumeStatus[0].PersistentVolumeClaimInfo.ClaimName).To(Equal("new"))
		m.Step(vm)
		ExpectExists(vm)
		Expect(vm.Status.VolumeUpdateState).To(BeNil())
		Expect(generationsOf(vm)).To(Equal("generation 2 desired 2 observed 2 instance 2"))
		m.expectQuiet(vm)
	})

	It("removes the migrated volumes from its status even if the write after the VMI's fails", func() {
		vm, vmi := moving()
		SetVMIStatus(vmi, v1.Running, migrating)
		Expect(vmistatus.TakeOwnership(ctx, K8sClient, ExpectExists(vmi), metav1.Now())).To(Succeed())
		m.Writes.Fail = func(request string) error {
			if request == patchVMStatus {
				return apierrors.NewConflict(v1.GroupVersion.WithResource("virtualmachines").GroupResource(), "vm",
					errors.New("changed"))
			}
			return nil
		}
		m.Step(vm)
		m.Writes.Fail = nil
		Expect(ExpectExists(vm).Status.VolumeUpdateState).NotTo(BeNil())
		Expect(InstanceOf(vm).Annotations).To(HaveKeyWithValue(v1.VirtualMachineGenerationAnnotation, "2"))
		m.Settle(vm)
		Expect(ExpectExists(vm).Status.VolumeUpdateState).To(BeNil())

		SetVMIStatus(vmi, v1.Succeeded)
		m.Settle(vm)
		Expect(ExpectExists(vm)).To(haveNoVMCondition(v1.VirtualMachineManualRecoveryRequired))
	})

	It("reverts the VMI's volumes and status when the change is reverted before a migration", func() {
		vm, vmi := moving()
		use(vm, "old")
		// The other way round: the spec names the guest's claims again before the status no longer has them.
		m.ExpectOrder(vm, patchInstance, "patch VirtualMachineInstance/status", patchVMStatus)
		m.Step(vm)
		ExpectExists(vmi)
		Expect(names(vm)).To(Equal("old"))
		Expect(vmi.Status.MigratedVolumes).To(BeEmpty())
		cond := vmistatus.FindCondition(&vmi.Status, v1.VirtualMachineInstanceVolumesChange)
		Expect(cond).NotTo(BeNil())
		Expect(string(cond.Status) + " " + cond.Reason).To(Equal("False VolumesChangeCancellation"))
		Expect(ExpectExists(vm).Status.VolumeUpdateState).To(BeNil())
		m.expectQuiet(vm)
	})

	It("aborts a running migration when the change is reverted, and changes nothing before that has ended", func() {
		vm, vmi := moving()
		SetVMIStatus(vmi, v1.Running, migrating)
		use(vm, "old")
		m.Step(vm)
		Expect(names(vm)).To(Equal("new"))
		ExpectExists(vmi)
		Expect(vmi.Status.MigrationState.AbortRequested).To(BeTrue())
		Expect(vmi.Status.MigratedVolumes).To(HaveLen(1))
		m.expectQuiet(vm)

		By("migrating back if the migration succeeds despite the abort")
		Expect(vmistatus.TakeOwnership(ctx, K8sClient, vmi, metav1.Now())).To(Succeed())
		m.Step(vm)
		moves := ExpectExists(vm).Status.VolumeUpdateState.VolumeMigrationState.MigratedVolumes
		Expect(moves[0].SourcePVCInfo.ClaimName + " " + moves[0].DestinationPVCInfo.ClaimName).To(Equal("new old"))
		m.Step(vm)
		Expect(names(vm)).To(Equal("old"))
	})

	It("refuses a third claim while the migration to the second one is not finished", func() {
		vm, _ := moving()
		use(vm, "third")
		m.Step(vm)
		Expect(ExpectExists(vm)).To(HaveVMCondition(v1.VirtualMachineFailure, corev1.ConditionTrue, "VolumesUpdateError",
			"error encountered while handling volumes update requests: volumes cannot be updated: "+
				"The volume can only be reverted to the previous version during the update"))
		Expect(names(vm)).To(Equal("new"))
	})

	It("waits for a claim that does not exist yet", func() {
		vm, _ := runs(v1.UpdateVolumesStrategyMigration)
		use(vm, "new")
		m.Step(vm)
		Expect(ExpectExists(vm)).To(HaveVMCondition(v1.VirtualMachineFailure, corev1.ConditionTrue, "VolumesUpdateError",
			"error encountered while handling volumes update requests: volumes cannot be updated: PersistentVolumeClaim "+m.ns+
				"/new of volume data does not exist, waiting for it"))
		claim("new", "1Gi")
		m.Settle(vm)
		Expect(ExpectExists(vm)).To(haveNoVMCondition(v1.VirtualMachineFailure))
		Expect(names(vm)).To(Equal("new"))
		Expect(InstanceOf(vm).Status.MigratedVolumes).To(HaveLen(1))
	})

	DescribeTable("requires a restart for a volume that cannot migrate",
		func(change func(*v1.VirtualMachineInstance), capacity, message string) {
			vm, vmi := runs(v1.UpdateVolumesStrategyMigration)
			claim("new", capacity)
			SetVMIStatus(vmi, v1.Running, func(*v1.VirtualMachineInstanceStatus) { change(vmi) })
			use(vm, "new")
			m.Step(vm)
			Expect(ExpectExists(vm)).To(HaveVMCondition(v1.VirtualMachineRestartRequired, corev1.ConditionTrue, "", message))
			Expect(names(vm)).To(Equal("old"))
			Expect(vm.Status.VolumeUpdateState).To(BeNil())
		},
		Entry("because the new claim is smaller", func(*v1.VirtualMachineInstance) {}, "512Mi",
			"cannot migrate volume data: "),
		Entry("because the VMI is not migratable", func(vmi *v1.VirtualMachineInstance) {
			WithCondition(v1.VirtualMachineInstanceIsStorageLiveMigratable, corev1.ConditionFalse, "X", "because")(&vmi.Status)
		}, "1Gi", "cannot migrate the volumes as the VMI isn't migratable: because"),
	)

	It("requires a restart with update strategy Replacement", func() {
		vm, _ := runs(v1.UpdateVolumesStrategyReplacement)
		claim("new", "1Gi")
		use(vm, "new")
		m.Step(vm)
		Expect(ExpectExists(vm)).To(HaveVMCondition(v1.VirtualMachineRestartRequired, corev1.ConditionTrue, "",
			"the volumes replacement is effective only after restart: volumes[data].persistentVolumeClaim.claimName"))
		m.expectQuiet(vm)
	})

	It("does not restart from the new claims when the VMI ended before its disks had migrated", func() {
		vm, vmi := moving()
		SetVMIStatus(vmi, v1.Failed)
		m.Settle(vm)
		removeFinalizer(vmi)
		m.Settle(vm)
		ExpectGone(vmi)
		Expect(ExpectExists(vm)).To(HaveVMCondition(v1.VirtualMachineManualRecoveryRequired, corev1.ConditionTrue,
			"VMI was removed or was final during the volume migration",
			"spec.template.spec.volumes"))

		use(vm, "old")
		m.Settle(vm)
		Expect(ExpectExists(vm)).To(haveNoVMCondition(v1.VirtualMachineManualRecoveryRequired))
		Expect(names(vm)).To(Equal("old"))
	})
})
