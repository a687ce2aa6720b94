// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachine_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/vmistatus"
	"github.com/vireo-project/vireo/test/builder"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

// withoutCondition removes a condition.
func withoutCondition(kind v1.VirtualMachineInstanceConditionType) func(*v1.VirtualMachineInstanceStatus) {
	return func(s *v1.VirtualMachineInstanceStatus) { vmistatus.RemoveCondition(s, kind) }
}

var _ = Describe("VirtualMachine with other CPUs or memory", func() {
	var m *vmHarness
	BeforeEach(func() { m = newVMHarness() })

	small := func() *builder.VMI { return builder.MakeVMI("vm").CPU(1, 1, 1).Guest("1Gi").With(Growable) }
	// runs starts a VM; its VMI runs with one socket and 1 GiB.
	runs := func(template *builder.VMI) (*v1.VirtualMachine, *v1.VirtualMachineInstance) {
		GinkgoHelper()
		vm, vmi := m.started(builder.MakeVM("vm").Template(template))
		SetVMIStatus(vmi, v1.Running, revised(vmi), Resized(1, "1Gi"))
		return vm, vmi
	}
	// size changes the template.
	size := func(vm *v1.VirtualMachine, sockets uint32, memory string) {
		GinkgoHelper()
		changeTemplate(vm, func(t *v1.VirtualMachineInstanceTemplateSpec) {
			t.Spec.Domain.CPU.Sockets, t.Spec.Domain.Memory.Guest = sockets, ptr.To(resource.MustParse(memory))
		})
	}
	expectRestart := func(vm *v1.VirtualMachine, message string) {
		GinkgoHelper()
		Expect(ExpectExists(vm)).To(HaveVMCondition(v1.VirtualMachineRestartRequired, corev1.ConditionTrue, "", message))
	}

	It("gives them to the running VMI, with its requests, and reports them as observed when the guest has them", func() {
		vm, _ := runs(small().Request(corev1.ResourceCPU, "200m").Request(corev1.ResourceMemory, "1100Mi"))
		template := vm.Spec.Template.DeepCopy()
		size(vm, 3, "2Gi")
		m.Step(vm)
		vmi := InstanceOf(vm)
		Expect(vmi.Spec.Domain.CPU.Sockets).To(BeEquivalentTo(3))
		Expect(vmi.Spec.Domain.Memory.Guest.String()).To(Equal("2Gi"))
		Expect(vmi.Spec.Domain.Resources.Requests.Cpu().String()).To(Equal("400m"))
		Expect(vmi.Spec.Domain.Resources.Requests.Memory().String()).To(Equal("2124Mi"))
		Expect(ExpectExists(vm)).To(haveNoVMCondition(v1.VirtualMachineRestartRequired))
		Expect(vm.Spec.Template.Spec.Domain.Resources).To(Equal(template.Spec.Domain.Resources), "the VM is its user's")
		Expect(generationsOf(vm)).To(Equal("generation 2 desired 2 observed 1 instance 1"))
		m.events.Take()
		m.expectQuiet(vm)

		SetVMIStatus(vmi, v1.Running, Resized(3, "1536Mi"))
		m.expectQuiet(vm)
		SetVMIStatus(vmi, v1.Running, Resized(3, "2Gi"))
		m.Step(vm)
		Expect(generationsOf(vm)).To(Equal("generation 2 desired 2 observed 2 instance 2"))
		m.expectQuiet(vm)

		By("taking memory back")
		size(vm, 3, "1Gi")
		m.Step(vm)
		Expect(InstanceOf(vm).Spec.Domain.Memory.Guest.String()).To(Equal("1Gi"))
		Expect(InstanceOf(vm).Spec.Domain.Resources.Requests.Memory().String()).To(Equal("1100Mi"))
	})

	It("gives them to a VMI whose template had no CPUs", func() {
		vm, _ := runs(builder.MakeVMI("vm").Guest("1Gi").With(
			func(vmi *v1.VirtualMachineInstance) { vmi.Spec.Domain.CPU = nil }))
		vmi := InstanceOf(vm)
		vmi.Spec.Domain.CPU = &v1.CPU{Sockets: 1, Cores: 1, Threads: 1, MaxSockets: 4} // as the webhook does
		Expect(K8sClient.Update(ctx, vmi)).To(Succeed())
		changeTemplate(vm, func(t *v1.VirtualMachineInstanceTemplateSpec) { t.Spec.Domain.CPU = &v1.CPU{Sockets: 2} })
		m.Step(vm)
		Expect(InstanceOf(vm).Spec.Domain.CPU.Sockets).To(BeEquivalentTo(2))
		Expect(ExpectExists(vm)).To(haveNoVMCondition(v1.VirtualMachineRestartRequired))
	})

	It("requires a restart for what a running guest cannot have, until the change is taken back", func() {
		vm, vmi := runs(small())
		for _, tc := range []struct {
			sockets         uint32
			memory, message string
		}{
			{5, "1Gi", "CPU sockets updated in template spec to a value higher than what's available"},
			{1, "5Gi", "memory hotplug not supported, Guest memory is greater than the configured maxGuest memory"},
			{1, "1025Mi", "memory hotplug not supported, Guest memory must be 2Mi aligned"},
			{1, "512Mi", "memory hotplug not supported, Memory hotplug is only available for VMs with at least 1Gi of guest memory"},
		} {
			size(vm, tc.sockets, tc.memory)
			m.Step(vm)
			expectRestart(vm, tc.message)
			Expect(InstanceOf(vm).Spec).To(Equal(vmi.Spec))
		}
		size(vm, 1, "1Gi")
		m.Step(vm)
		Expect(ExpectExists(vm)).To(haveNoVMCondition(v1.VirtualMachineRestartRequired))

		By("removing CPUs, and memory that it was started with")
		size(vm, 3, "1Gi")
		m.Step(vm)
		Expect(InstanceOf(vm).Spec.Domain.CPU.Sockets).To(BeEquivalentTo(3))
		SetVMIStatus(vmi, v1.Running, Resized(3, "2Gi"),
			func(s *v1.VirtualMachineInstanceStatus) { s.Memory.GuestAtBoot = ptr.To(resource.MustParse("2Gi")) })
		size(vm, 2, "1Gi")
		m.Step(vm)
		expectRestart(vm, "Reduction of CPU socket count requires a restart")
		size(vm, 3, "1026Mi")
		m.Step(vm)
		expectRestart(vm, "memory updated in template spec to a value lower than what the VM started with")
	})

	It("requires a restart for VMIs that were started without room", func() {
		vm, _ := runs(builder.MakeVMI("vm").CPU(1, 1, 1).Guest("1Gi"))
		size(vm, 1, "2Gi")
		m.Step(vm)
		expectRestart(vm, "memory updated in template spec. Memory-hotplug is not available for this VM configuration")
		size(vm, 2, "1Gi")
		m.Step(vm)
		expectRestart(vm, "CPU sockets updated in template spec to a value higher than what's available")
	})

	It("waits for a guest that starts, and for one that migrates", func() {
		vm := m.create(builder.MakeVM("vm").Template(small()))
		m.Step(vm)
		vmi := InstanceOf(vm)
		SetVMIStatus(vmi, v1.Scheduled, revised(vmi))
		m.Step(vm)
		size(vm, 2, "2Gi")
		m.Step(vm)
		Expect(InstanceOf(vm).Spec.Domain.CPU.Sockets).To(BeEquivalentTo(1), "its Pod is for one")
		Expect(ExpectExists(vm)).To(haveNoVMCondition(v1.VirtualMachineRestartRequired))

		SetVMIStatus(vmi, v1.Running, Resized(1, "1Gi"), func(s *v1.VirtualMachineInstanceStatus) {
			s.MigrationState = &v1.VirtualMachineInstanceMigrationState{StartTimestamp: ptr.To(metav1.Now())}
		})
		m.Step(vm)
		Expect(ExpectExists(vm)).To(HaveVMCondition(v1.VirtualMachineFailure, corev1.ConditionTrue, "HotPlugCPUError",
			"CPU hotplug is not allowed while VMI is migrating"))
		Expect(InstanceOf(vm).Spec.Domain.CPU.Sockets).To(BeEquivalentTo(1))

		SetVMIStatus(vmi, v1.Running, func(s *v1.VirtualMachineInstanceStatus) { s.MigrationState.Completed = true })
		m.Step(vm)
		Expect(ExpectExists(vm)).To(haveNoVMCondition(v1.VirtualMachineFailure))
		Expect(InstanceOf(vm).Spec.Domain.CPU.Sockets).To(BeEquivalentTo(2))
		Expect(InstanceOf(vm).Spec.Domain.Memory.Guest.String()).To(Equal("2Gi"))
	})

	It("requires a restart while its Pod can have no other size, and not when the change is taken back", func() {
		vm, vmi := runs(small())
		size(vm, 2, "2Gi")
		m.Step(vm)
		Expect(InstanceOf(vm).Spec.Domain.CPU.Sockets).To(BeEquivalentTo(2))
		SetVMIStatus(vmi, v1.Running,
			WithCondition(v1.VirtualMachineInstanceVCPUChange, corev1.ConditionFalse, "RestartRequired", "the node is full"))
		m.Step(vm)
		expectRestart(vm, "the node is full")
		SetVMIStatus(vmi, v1.Running,
			WithCondition(v1.VirtualMachineInstanceMemoryChange, corev1.ConditionFalse, "RestartRequired", "the node is full"))
		size(vm, 1, "2Gi")
		m.Step(vm)
		Expect(InstanceOf(vm).Spec.Domain.CPU.Sockets).To(BeEquivalentTo(1))
		SetVMIStatus(vmi, v1.Running, withoutCondition(v1.VirtualMachineInstanceVCPUChange))
		m.Step(vm)
		expectRestart(vm, "Memory-hotplug failed and is not available for this VM configuration: the node is full")

		size(vm, 1, "1Gi")
		m.Step(vm)
		Expect(InstanceOf(vm).Spec.Domain.Memory.Guest.String()).To(Equal("1Gi"))
		SetVMIStatus(vmi, v1.Running, withoutCondition(v1.VirtualMachineInstanceMemoryChange))
		m.Step(vm)
		Expect(ExpectExists(vm)).To(haveNoVMCondition(v1.VirtualMachineRestartRequired))
		Expect(generationsOf(vm)).To(Equal("generation 4 desired 4 observed 4 instance 4"))
	})

	It("follows another instance type", func() {
		ExpectCreated(NewInstancetype(m.ns, "small", 2), NewInstancetype(m.ns, "big", 4))
		vm := m.create(builder.MakeVM("vm").With(WithInstancetype("small")))
		m.Step(vm)
		vmi := InstanceOf(vm)
		vmi.Spec.Domain.CPU.MaxSockets = 8 // as the webhook does
		Expect(K8sClient.Update(ctx, vmi)).To(Succeed())
		SetVMIStatus(vmi, v1.Running, revised(vmi), func(s *v1.VirtualMachineInstanceStatus) {
			s.CurrentCPUTopology = &v1.CPUTopology{Sockets: 2, Cores: 1, Threads: 1}
		})
		m.Step(vm)
		EditVM(vm, func(vm *v1.VirtualMachine) { vm.Spec.Instancetype.Name = "big" })
		m.Step(vm)
		Expect(InstanceOf(vm).Spec.Domain.CPU.Sockets).To(BeEquivalentTo(4))
		Expect(ExpectExists(vm)).To(haveNoVMCondition(v1.VirtualMachineRestartRequired))
		Expect(vm.Status.InstancetypeRef.Name).To(Equal("big"))
	})
})
