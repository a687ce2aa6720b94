// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachine_test

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/test/builder"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

var _ = Describe("VirtualMachine whose migration has a target", func() {
	var m *vmHarness
	BeforeEach(func() {
		m = newVMHarness()
		config := clusterconfig.Default()
		config.HotplugVolumes = true
		m.Config = FixedConfig{Config: config}
	})

	// has returns what a change of the template would change in the VMI.
	has := func(vm *v1.VirtualMachine) v1.VirtualMachineInstanceSpec {
		GinkgoHelper()
		return *InstanceOf(vm).Spec.DeepCopy()
	}
	// enter sets the phase of a migration, as its reconciler does.
	enter := func(migration *v1.VirtualMachineInstanceMigration, phase v1.VirtualMachineInstanceMigrationPhase) {
		GinkgoHelper()
		ExpectExists(migration).Status.Phase = phase
		ExpectStatus(migration)
	}

	DescribeTable("does not change its VMI until the migration is over",
		func(change func(*v1.VirtualMachineInstanceSpec), failure string) {
			claim := func(name string) { ExpectCreated(builder.MakePVC(name).Namespace(m.ns).Bound("1Gi").Obj()) }
			claim("old")
			claim("new")
			vm, vmi := m.started(builder.MakeVM("vm").
				Template(builder.MakeVMI("vm").CPU(1, 1, 1).Guest("1Gi").With(Growable).Masquerade().PVC("data", "old")).
				With(func(vm *v1.VirtualMachine) {
					vm.Spec.UpdateVolumesStrategy = ptr.To(v1.UpdateVolumesStrategyMigration)
				}))
			SetVMIStatus(vmi, v1.Running, revised(vmi), Resized(1, "1Gi"), InGuest("default"),
				WithCondition(v1.VirtualMachineInstanceIsStorageLiveMigratable, corev1.ConditionTrue, "", ""),
				func(s *v1.VirtualMachineInstanceStatus) {
					s.VolumeStatus = []v1.VolumeStatus{{Name: "data", Size: 1 << 30,
						PersistentVolumeClaimInfo: &v1.PersistentVolumeClaimInfo{
							ClaimName: "old", AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
						}}}
				})
			m.Settle(vm)
			migration := builder.MakeMigration("go", "vm").Namespace(m.ns).Obj()
			ExpectCreated(migration)
			enter(migration, v1.MigrationScheduling)
			before := has(vm)
			changeTemplate(vm, func(t *v1.VirtualMachineInstanceTemplateSpec) { change(&t.Spec) })
			m.Settle(vm)
			Expect(has(vm)).To(Equal(before), "the target was made for this spec")
			Expect(InstanceOf(vm).Status.MigratedVolumes).To(BeEmpty())
			Expect(ExpectExists(vm).Status.ObservedGeneration).To(Equal(int64(1)))
			Expect(vm.Status.PrintableStatus).To(Equal(v1.VirtualMachineStatusRunning), "no transfer has started")
			if failure == "" {
				Expect(vm).To(haveNoVMCondition(v1.VirtualMachineFailure))
			} else {
				Expect(vm).To(HaveVMCondition(v1.VirtualMachineFailure, corev1.ConditionTrue, failure, "migrati"))
			}

			enter(migration, v1.MigrationFailed)
			m.Settle(vm)
			Expect(has(vm)).NotTo(Equal(before))
			Expect(ExpectExists(vm)).To(haveNoVMCondition(v1.VirtualMachineFailure))
		},
		Entry("of a node selector", func(s *v1.VirtualMachineInstanceSpec) { s.NodeSelector = map[string]string{"zone": "a"} }, "AffinityChangeError"),
		Entry("of CPUs", func(s *v1.VirtualMachineInstanceSpec) { s.Domain.CPU.Sockets = 2 }, "HotPlugCPUError"),
		Entry("of memory", func(s *v1.VirtualMachineInstanceSpec) { s.Domain.Memory.Guest = ptr.To(resource.MustParse("2Gi")) }, "HotPlugMemoryError"),
		Entry("of interfaces", WithBlueNetwork, ""),
		Entry("of claims", func(s *v1.VirtualMachineInstanceSpec) { s.Volumes[0].PersistentVolumeClaim.ClaimName = "new" }, ""),
	)

	It("plugs volumes when the migration is over", func() {
		vm, vmi := m.started(builder.MakeVM("vm").Template(
			builder.MakeVMI("vm").ContainerDisk("root", "registry.example/debian:13")))
		SetVMIStatus(vmi, v1.Running, revised(vmi))
		migration := builder.MakeMigration("go", "vm").Namespace(m.ns).Obj()
		ExpectCreated(migration)
		enter(migration, v1.MigrationScheduled)
		changeTemplate(vm, func(t *v1.VirtualMachineInstanceTemplateSpec) {
			t.Spec.Volumes = append(t.Spec.Volumes,
				builder.MakeVMI("x").Hotpluggable("data", "data-claim").Obj().Spec.Volumes...)
			t.Spec.Domain.Devices.Disks = append(t.Spec.Domain.Devices.Disks,
				builder.MakeVMI("x").Hotpluggable("data", "data-claim").Obj().Spec.Domain.Devices.Disks...)
		})
		m.Settle(vm)
		expectVolumes(vm, "root")
		enter(migration, v1.MigrationSucceeded)
		m.Settle(vm)
		expectVolumes(vm, "root", "data=data-claim")
	})

	It("follows its template while the migration waits in the queue, and as soon as its guest has migrated", func() {
		vm, vmi := m.started(builder.MakeVM("vm"))
		SetVMIStatus(vmi, v1.Running, revised(vmi))
		migration := builder.MakeMigration("go", "vm").Namespace(m.ns).Phase(v1.MigrationPending, time.Now()).Obj()
		ExpectCreated(migration)
		enter(migration, v1.MigrationPending)
		zone := func(name string) {
			GinkgoHelper()
			changeTemplate(vm, func(t *v1.VirtualMachineInstanceTemplateSpec) {
				t.Spec.NodeSelector = map[string]string{
					"zone": name}
			})
			m.Settle(vm)
			Expect(InstanceOf(vm).Spec.NodeSelector).To(HaveKeyWithValue("zone", name))
		}
		zone("a")
		enter(migration, v1.MigrationRunning)
		SetVMIStatus(vmi, v1.Running, func(s *v1.VirtualMachineInstanceStatus) {
			s.MigrationState = &v1.VirtualMachineInstanceMigrationState{MigrationUID: migration.UID, Completed: true}
		})
		zone("b")
	})
})
