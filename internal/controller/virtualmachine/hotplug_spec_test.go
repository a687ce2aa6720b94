// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachine_test

import (
	"slices"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/controller/virtualmachine"
	"github.com/vireo-project/vireo/internal/decide/hotplug"
	"github.com/vireo-project/vireo/internal/vmistatus"
	"github.com/vireo-project/vireo/test/builder"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

var _ = Describe("VirtualMachine with hotpluggable volumes", func() {
	var m *vmHarness
	BeforeEach(func() {
		m = newVMHarness()
		config := clusterconfig.Default()
		config.HotplugVolumes = true
		m.Config = FixedConfig{Config: config}
	})

	// plugged reports hotplugged volumes as the guest's, and the disk "root" as the launcher Pod's.
	plugged := func(names ...string) func(*v1.VirtualMachineInstanceStatus) {
		return func(s *v1.VirtualMachineInstanceStatus) {
			s.VolumeStatus = []v1.VolumeStatus{{Name: "root"}}
			for _, name := range names {
				s.VolumeStatus = append(s.VolumeStatus,
					v1.VolumeStatus{Name: name, Phase: v1.VolumeReady, HotplugVolume: &v1.HotplugVolumeStatus{}})
			}
		}
	}
	runs := func(change ...func(*v1.VirtualMachine)) (*v1.VirtualMachine, *v1.VirtualMachineInstance) {
		GinkgoHelper()
		b := builder.MakeVM("vm").Template(
			builder.MakeVMI("vm").ContainerDisk("root", "registry.example/debian:13").Hotpluggable("data", "data-claim").
				With(func(vmi *v1.VirtualMachineInstance) {
					vmi.Spec.Domain.Devices.Disks = append(vmi.Spec.Domain.Devices.Disks,
						v1.Disk{Name: "tray", DiskDevice: v1.DiskDevice{CDRom: &v1.CDRomTarget{Bus: v1.DiskBusSATA}}})
				}))
		for _, do := range change {
			b.With(do)
		}
		vm, vmi := m.started(b)
		SetVMIStatus(vmi, v1.Running, revised(vmi), plugged("data"))
		m.expectQuiet(vm)
		return vm, vmi
	}
	insert := func(vm *v1.VirtualMachine, name, claim string) {
		GinkgoHelper()
		changeTemplate(vm, func(t *v1.VirtualMachineInstanceTemplateSpec) {
			t.Spec.Volumes = slices.Insert(t.Spec.Volumes, 0,
				builder.MakeVMI("x").Hotpluggable(name, claim).Obj().Spec.Volumes...)
		})
	}
	follows := func(vm *v1.VirtualMachine, volumes ...string) {
		GinkgoHelper()
		m.Step(vm)
		expectVolumes(vm, volumes...)
		Expect(ExpectExists(vm)).To(haveNoVMCondition(v1.VirtualMachineRestartRequired))
	}

	It("plugs and unplugs them, and reports the template as observed when the guest has them", func() {
		vm, vmi := runs()
		insert(vm, "more", "more-claim")
		template := vm.Spec.Template.DeepCopy()
		follows(vm, "root", "data=data-claim", "more=more-claim")
		Expect(vmistatus.FindDisk(&InstanceOf(vm).Spec, "more").Disk.Bus).To(Equal(v1.DiskBusSCSI))
		Expect(ExpectExists(vm).Spec.Template).To(Equal(template), "the VM is its user's")
		Expect(generationsOf(vm)).To(Equal("generation 2 desired 2 observed 1 instance 1"))
		m.events.Take()
		m.expectQuiet(vm)
		SetVMIStatus(vmi, v1.Running, plugged("data", "more"))
		m.Step(vm)
		Expect(generationsOf(vm)).To(Equal("generation 2 desired 2 observed 2 instance 2"))
		m.expectQuiet(vm)

		changeTemplate(vm, func(t *v1.VirtualMachineInstanceTemplateSpec) { hotplug.Remove(&t.Spec, "data") })
		follows(vm, "root", "more=more-claim")
		Expect(vmistatus.FindDisk(&InstanceOf(vm).Spec, "data")).To(BeNil())
		SetVMIStatus(vmi, v1.Running, plugged("more"))
		m.Step(vm)
		Expect(generationsOf(vm)).To(Equal("generation 3 desired 3 observed 3 instance 3"))
	})

	It("inserts, swaps and ejects the medium of a CD-ROM drive", func() {
		vm, vmi := runs()
		insert(vm, "tray", "first")
		follows(vm, "root", "data=data-claim", "tray=first")
		SetVMIStatus(vmi, v1.Running, plugged("data", "tray"))
		m.Step(vm)
		Expect(generationsOf(vm)).To(Equal("generation 2 desired 2 observed 2 instance 2"))

		changeTemplate(vm, func(t *v1.VirtualMachineInstanceTemplateSpec) {
			t.Spec.Volumes[0].PersistentVolumeClaim.ClaimName = "second"
		})
		follows(vm, "root", "data=data-claim")
		Expect(vmistatus.FindDisk(&InstanceOf(vm).Spec, "tray")).NotTo(BeNil())
		m.expectQuiet(vm)
		SetVMIStatus(vmi, v1.Running, plugged("data"))
		m.Step(vm)
		expectVolumes(vm, "root", "data=data-claim", "tray=second")
		SetVMIStatus(vmi, v1.Running, plugged("data", "tray"))
		m.Step(vm)
		Expect(generationsOf(vm)).To(Equal("generation 3 desired 3 observed 3 instance 3"))

		changeTemplate(vm, func(t *v1.VirtualMachineInstanceTemplateSpec) { hotplug.Remove(&t.Spec, "tray") })
		follows(vm, "root", "data=data-claim")
	})

	It("requires a restart for what cannot be plugged, and says why, until it is taken back", func() {
		vm, vmi := runs()
		insert(vm, "more", "more-claim")
		changeTemplate(vm, func(t *v1.VirtualMachineInstanceTemplateSpec) {
			t.Spec.Domain.Devices.Disks = append(t.Spec.Domain.Devices.Disks,
				v1.Disk{Name: "more", DiskDevice: v1.DiskDevice{Disk: &v1.DiskTarget{Bus: v1.DiskBusSATA}}})
		})
		m.Step(vm)
		expectVolumes(vm, "root", "data=data-claim")
		Expect(ExpectExists(vm)).To(HaveVMCondition(v1.VirtualMachineRestartRequired, corev1.ConditionTrue, "",
			"a non-live-updatable field was changed in the template spec: domain.devices.disks[more]; Hotplug configuration for disk [more] requires bus to be 'scsi' or 'virtio'"))
		changeTemplate(vm, func(t *v1.VirtualMachineInstanceTemplateSpec) {
			t.Spec.Domain.Devices.Disks[3].Disk.Bus = v1.DiskBusSCSI
		})
		follows(vm, "root", "data=data-claim", "more=more-claim")
		SetVMIStatus(vmi, v1.Running, plugged("data", "more"))
		m.Step(vm)
		Expect(generationsOf(vm)).To(Equal("generation 4 desired 4 observed 4 instance 4"))

		changeTemplate(vm, func(t *v1.VirtualMachineInstanceTemplateSpec) { t.Spec.Domain.Devices.Disks[1].Serial = "other" })
		m.Step(vm)
		Expect(ExpectExists(vm)).To(
			HaveVMCondition(v1.VirtualMachineRestartRequired, corev1.ConditionTrue, "",
				"a non-live-updatable field was changed"))
	})

	It("plugs with any rollout strategy, and whatever else needs a restart", func() {
		vm, _ := runs()
		config := m.Config.Current()
		config.RolloutStrategy = v1.VMRolloutStrategyStage
		m.Config = FixedConfig{Config: config}
		insert(vm, "more", "more-claim")
		follows(vm, "root", "data=data-claim", "more=more-claim")
		changeTemplate(vm, func(t *v1.VirtualMachineInstanceTemplateSpec) {
			t.Spec.Hostname = "other"
			hotplug.Remove(&t.Spec, "more")
		})
		m.Step(vm)
		expectVolumes(vm, "root", "data=data-claim")
		Expect(ExpectExists(vm)).To(
			HaveVMCondition(v1.VirtualMachineRestartRequired, corev1.ConditionTrue, "",
				"a non-live-updatable field was changed"))
	})

	It("reports what the admission of its VMI refuses", func() {
		vm, _ := runs()
		m.Writes.Fail = func(request string) error {
			if request == patchInstance {
				return apierrors.NewInvalid(v1.VirtualMachineInstanceGroupVersionKind.GroupKind(), "vm",
					field.ErrorList{field.Required(field.NewPath("spec", "volumes"), "refused")})
			}
			return nil
		}
		insert(vm, "more", "more-claim")
		m.Step(vm)
		Expect(ExpectExists(vm)).To(
			HaveVMCondition(v1.VirtualMachineFailure, corev1.ConditionTrue, virtualmachine.ReasonHotPlugVolume,
				"Error encountered while handling declarative hotplug volumes: "))
		expectVolumes(vm, "root", "data=data-claim")
	})

	It("waits for a guest that migrates", func() {
		vm, vmi := runs()
		SetVMIStatus(vmi, v1.Running, func(s *v1.VirtualMachineInstanceStatus) {
			s.MigrationState = &v1.VirtualMachineInstanceMigrationState{StartTimestamp: ptr.To(vm.CreationTimestamp)}
		})
		insert(vm, "more", "more-claim")
		m.Step(vm)
		expectVolumes(vm, "root", "data=data-claim")
		Expect(ExpectExists(vm)).To(haveNoVMCondition(v1.VirtualMachineRestartRequired))
		SetVMIStatus(vmi, v1.Running, func(s *v1.VirtualMachineInstanceStatus) { s.MigrationState.Completed = true })
		m.Step(vm)
		expectVolumes(vm, "root", "data=data-claim", "more=more-claim")
	})

	It("moves a changed claim by a migration if that is the strategy", func() {
		vm, _ := runs(func(vm *v1.VirtualMachine) {
			vm.Spec.UpdateVolumesStrategy = ptr.To(
				v1.UpdateVolumesStrategyMigration)
		})
		changeTemplate(vm, func(t *v1.VirtualMachineInstanceTemplateSpec) { hotplug.Remove(&t.Spec, "data") })
		m.Step(vm)
		expectVolumes(vm, "root", "data=data-claim")
		Expect(ExpectExists(vm)).To(
			HaveVMCondition(v1.VirtualMachineRestartRequired, corev1.ConditionTrue, "",
				"a non-live-updatable field was changed"))
	})

	It("keeps volumes that were plugged into the instance only, as long as the deprecated gate is on", func() {
		gated := clusterconfig.Default()
		gated.HotplugVolumes = true
		gated.FeatureGates = clusterconfig.NewFeatureGates([]string{"HotplugVolumes"}, nil)
		m.Config = FixedConfig{Config: gated}
		vm, vmi := runs()
		change := vmi.DeepCopy()
		plug := builder.MakeVMI("x").Hotpluggable("only", "only-claim").Obj()
		hotplug.Add(&change.Spec, &plug.Spec.Volumes[0], &plug.Spec.Domain.Devices.Disks[0])
		hotplug.SetEphemeral(change, []string{"only"})
		Expect(K8sClient.Patch(ctx, change, client.MergeFrom(vmi))).To(Succeed())
		SetVMIStatus(change, v1.Running, plugged("data", "only"))
		m.expectQuiet(vm)

		insert(vm, "more", "more-claim")
		follows(vm, "root", "data=data-claim", "only=only-claim", "more=more-claim")
		Expect(InstanceOf(vm).Annotations).To(HaveKeyWithValue(hotplug.EphemeralAnnotation, `["only"]`))

		// The template gets it too: then the VM has it.
		insert(vm, "only", "only-claim")
		follows(vm, "root", "data=data-claim", "only=only-claim", "more=more-claim")
		Expect(InstanceOf(vm).Annotations).NotTo(HaveKey(hotplug.EphemeralAnnotation))
		changeTemplate(vm, func(t *v1.VirtualMachineInstanceTemplateSpec) { hotplug.Remove(&t.Spec, "only") })
		follows(vm, "root", "data=data-claim", "more=more-claim")
	})

	It("unplugs volumes of the instance only when the deprecated gate is off", func() {
		vm, vmi := runs()
		change := vmi.DeepCopy()
		plug := builder.MakeVMI("x").Hotpluggable("only", "only-claim").Obj()
		hotplug.Add(&change.Spec, &plug.Spec.Volumes[0], &plug.Spec.Domain.Devices.Disks[0])
		hotplug.SetEphemeral(change, []string{"only"})
		Expect(K8sClient.Patch(ctx, change, client.MergeFrom(vmi))).To(Succeed())
		SetVMIStatus(change, v1.Running, plugged("data", "only"))
		insert(vm, "more", "more-claim")
		follows(vm, "root", "data=data-claim", "more=more-claim")
	})

	It("requires a restart as long as hotplug is off", func() {
		config := clusterconfig.Default()
		config.HotplugVolumes = false
		m.Config = FixedConfig{Config: config}
		vm, _ := runs()
		insert(vm, "more", "more-claim")
		m.Step(vm)
		expectVolumes(vm, "root", "data=data-claim")
		Expect(ExpectExists(vm)).To(
			HaveVMCondition(v1.VirtualMachineRestartRequired, corev1.ConditionTrue, "",
				"a non-live-updatable field was changed"))
	})
})

// expectVolumes expects the volumes of a VM's instance, each with its claim if it has one, in any order.
func expectVolumes(vm *v1.VirtualMachine, want ...string) {
	GinkgoHelper()
	var got []string
	vmi := InstanceOf(vm)
	for i := range vmi.Spec.Volumes {
		name := vmi.Spec.Volumes[i].Name
		if claim := vmi.Spec.Volumes[i].WrittenClaim(); claim != "" {
			name += "=" + claim
		}
		got = append(got, name)
	}
	Expect(got).To(ConsistOf(want))
}
