// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstancemigration_test

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/conditions"
	"github.com/vireo-project/vireo/internal/decide/backup"
	"github.com/vireo-project/vireo/internal/decide/snapshot/freeze"
	"github.com/vireo-project/vireo/test/builder"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

var _ = Describe("A migration during a snapshot or a backup", func() {
	var (
		m    *migrations
		vmi  *v1.VirtualMachineInstance
		vmim *v1.VirtualMachineInstanceMigration
	)

	// intend writes an intent and a record.
	intend := func(end freeze.End, record freeze.Record) {
		GinkgoHelper()
		before := ExpectExists(vmi).DeepCopy()
		vmi.Status.SnapshotFreeze = (&freeze.Intent{ID: "a", Deadline: m.clock.Now().Add(time.Minute), End: end}).Status()
		vmi.Status.SnapshotFreezeRecord = record.Status()
		Expect(K8sClient.Status().Patch(ctx, vmi, client.MergeFrom(before))).To(Succeed())
	}
	frozen := func() freeze.Record {
		return freeze.Record{ID: "a", Deadline: m.clock.Now().Add(time.Minute), Stage: freeze.Frozen, FrozenAt: m.clock.Now()}
	}
	thawed := func() freeze.Record {
		record := frozen()
		record.Stage, record.ThawedAt = freeze.Thawed, m.clock.Now()
		return record
	}

	BeforeEach(func() {
		m = newMigrations()
		vmi = m.running("a", "vm")
		vmim = m.request(builder.MakeMigration("go", "vm"))
	})

	It("waits until the guest is thawed, and says why", func() {
		intend(freeze.Open, freeze.Record{})
		m.reconcileAll(vmim)
		ExpectGone(m.target(vmi, vmim))
		Expect(m.recorded.Take()).To(ContainElement(
			"Normal MigrationWaitsForSnapshot: The migration go waits until the guest, which a snapshot or a backup has frozen, is thawed"))
		intend(freeze.Release, frozen())
		m.reconcileAll(vmim)
		ExpectGone(m.target(vmi, vmim))
		intend(freeze.Release, thawed())
		m.reconcileAll(vmim)
		ExpectExists(m.target(vmi, vmim))
	})

	It("waits no longer than until the deadline", func() {
		intend(freeze.Open, frozen())
		m.reconcileAll(vmim)
		wait := m.Step(vmim).RequeueAfter
		Expect(wait).To(And(BeNumerically(">", 0), BeNumerically("<=", time.Minute)))
		m.clock.SetTime(m.clock.Now().Add(wait))
		m.reconcileAll(vmim)
		ExpectExists(m.target(vmi, vmim))
	})

	It("waits until a backup of the guest's disks has ended, and says why", func() {
		write := func(do func(*v1.VirtualMachineInstanceStatus)) {
			GinkgoHelper()
			before := ExpectExists(vmi).DeepCopy()
			do(&vmi.Status)
			Expect(K8sClient.Status().Patch(ctx, vmi, client.MergeFrom(before))).To(Succeed())
			m.reconcileAll(vmim)
		}
		intent := &backup.Intent{ID: "a", UtilityVolume: "target", Directory: "vm", Volumes: []string{"root"}}
		write(func(status *v1.VirtualMachineInstanceStatus) { status.DiskBackup = intent.Status() })
		ExpectGone(m.target(vmi, vmim))
		Expect(m.recorded.Take()).To(ContainElement(
			"Normal MigrationWaitsForBackup: The migration go waits until the VirtualMachineBackup of the guest has ended, or is deleted"))
		write(func(status *v1.VirtualMachineInstanceStatus) {
			status.DiskBackupRecord = backup.Record{ID: "a", Stage: backup.Running}.Status()
		})
		ExpectGone(m.target(vmi, vmim))
		write(func(status *v1.VirtualMachineInstanceStatus) {
			status.DiskBackupRecord = backup.Record{ID: "a", Stage: backup.Succeeded}.Status()
		})
		ExpectExists(m.target(vmi, vmim))
	})

	It("waits until the guest's utility volumes are detached, and fails if that takes too long", func() {
		attach := func(names ...string) {
			GinkgoHelper()
			ChangeVMISpec(vmi, func(spec *v1.VirtualMachineInstanceSpec) {
				spec.UtilityVolumes = nil
				for _, name := range names {
					u := v1.UtilityVolume{Name: name}
					u.ClaimName = name
					spec.UtilityVolumes = append(spec.UtilityVolumes, u)
				}
			})
			m.reconcileAll(vmim)
		}
		blocked := func() *v1.VirtualMachineInstanceMigrationCondition {
			GinkgoHelper()
			return conditions.Find(ExpectExists(vmim).Status.Conditions,
				v1.VirtualMachineInstanceMigrationBlockedByUtilityVolumes)
		}
		other := m.running("a", "other")
		attach("target")
		ExpectGone(m.target(vmi, vmim))
		Expect(blocked()).To(HaveField("Reason", "UtilityVolumesPresent"))
		wait := m.Step(vmim).RequeueAfter
		Expect(wait).To(And(BeNumerically(">", 2*time.Minute), BeNumerically("<=", 150*time.Second)))
		By("not counting the time of a backup")
		intent := &backup.Intent{ID: "a", UtilityVolume: "target", Directory: "vm", Volumes: []string{"root"}}
		back := func(intent *v1.DiskBackup) {
			GinkgoHelper()
			before := ExpectExists(vmi).DeepCopy()
			vmi.Status.DiskBackup = intent
			Expect(K8sClient.Status().Patch(ctx, vmi, client.MergeFrom(before))).To(Succeed())
			m.reconcileAll(vmim)
		}
		back(intent.Status())
		Expect(blocked()).To(BeNil())
		m.clock.SetTime(m.clock.Now().Add(4 * time.Minute))
		back(nil)
		Expect(blocked()).NotTo(BeNil())
		attach()
		ExpectExists(m.target(vmi, vmim))
		Expect(blocked()).To(BeNil())

		By("waiting in vain")
		vmi = other
		vmim = m.request(builder.MakeMigration("in-vain", "other"))
		attach("target")
		wait = m.Step(vmim).RequeueAfter
		m.clock.SetTime(m.clock.Now().Add(wait))
		m.reconcileAll(vmim)
		Expect(ExpectExists(vmim).Status.Phase).To(Equal(v1.MigrationFailed))
		ExpectGone(m.target(vmi, vmim))
	})

	It("is not assigned to the agents if the snapshot starts after the target's Pod was created", func() {
		m.reconcileAll(vmim)
		intend(freeze.Open, freeze.Record{})
		m.setPodStatus(m.target(vmi, vmim), m.node("b"), builder.MakePodStatus().Running())
		m.reconcileAll(vmim)
		Expect(ExpectExists(vmi).Status.MigrationState).To(BeNil())
		intend(freeze.Cancel, thawed())
		m.reconcileAll(vmim)
		Expect(ExpectExists(vmi).Status.MigrationState).NotTo(BeNil())
	})
})
