// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachine_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/test/builder"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

var _ = Describe("VirtualMachine with a changed link of an interface", func() {
	var m *vmHarness
	BeforeEach(func() { m = newVMHarness() })

	runs := func() (*v1.VirtualMachine, *v1.VirtualMachineInstance) {
		GinkgoHelper()
		vm, vmi := m.started(builder.MakeVM("vm").Template(builder.MakeVMI("vm").Masquerade().Multus("blue", "blue")))
		SetVMIStatus(vmi, v1.Running, revised(vmi))
		return vm, vmi
	}
	set := func(vm *v1.VirtualMachine, state v1.InterfaceState) {
		GinkgoHelper()
		changeTemplate(vm, func(t *v1.VirtualMachineInstanceTemplateSpec) {
			t.Spec.Domain.Devices.Interfaces[1].State = state
		})
	}
	states := func(vm *v1.VirtualMachine) (all []v1.InterfaceState) {
		GinkgoHelper()
		for _, iface := range InstanceOf(vm).Spec.Domain.Devices.Interfaces {
			all = append(all, iface.State)
		}
		return all
	}

	DescribeTable("copies the state to the running VMI and requires no restart, with rollout strategy",
		func(strategy v1.VMRolloutStrategy) {
			config := clusterconfig.Default()
			config.RolloutStrategy = strategy
			m.Config = FixedConfig{Config: config}
			vm, _ := runs()
			set(vm, v1.InterfaceStateLinkDown)
			m.Step(vm)
			Expect(states(vm)).To(Equal([]v1.InterfaceState{"", v1.InterfaceStateLinkDown}))
			Expect(ExpectExists(vm)).To(haveNoVMCondition(v1.VirtualMachineRestartRequired))
			Expect(generationsOf(vm)).To(Equal("generation 2 desired 2 observed 2 instance 2"))
			m.expectQuiet(vm)

			set(vm, "")
			m.Step(vm)
			Expect(states(vm)).To(Equal([]v1.InterfaceState{"", ""}))
			Expect(generationsOf(vm)).To(Equal("generation 3 desired 3 observed 3 instance 3"))
			m.expectQuiet(vm)
		},
		Entry(nil, v1.VMRolloutStrategyLiveUpdate),
		Entry(nil, v1.VMRolloutStrategyStage),
	)

	It("copies the state also while another change needs a restart", func() {
		vm, _ := runs()
		changeTemplate(vm, func(t *v1.VirtualMachineInstanceTemplateSpec) {
			t.Spec.Domain.CPU = &v1.CPU{Sockets: 3}
			t.Spec.Domain.Devices.Interfaces[1].State = v1.InterfaceStateLinkDown
		})
		m.Step(vm)
		Expect(states(vm)).To(Equal([]v1.InterfaceState{"", v1.InterfaceStateLinkDown}))
		Expect(ExpectExists(vm)).To(
			HaveVMCondition(v1.VirtualMachineRestartRequired, corev1.ConditionTrue, "", "non-live-updatable"))
		Expect(generationsOf(vm)).To(Equal("generation 2 desired 2 observed 1 instance 1"))
		m.events.Take()
		m.expectQuiet(vm)
	})

	It("copies the state also while a migration delays another change", func() {
		vm, vmi := runs()
		SetVMIStatus(vmi, v1.Running, func(s *v1.VirtualMachineInstanceStatus) {
			s.MigrationState = &v1.VirtualMachineInstanceMigrationState{StartTimestamp: ptr.To(metav1.Now())}
		})
		m.Step(vm)
		Expect(show(vm)).To(Equal(v1.VirtualMachineStatusMigrating))
		changeTemplate(vm, func(t *v1.VirtualMachineInstanceTemplateSpec) {
			t.Spec.NodeSelector = map[string]string{"zone": "a"}
			t.Spec.Domain.Devices.Interfaces[1].State = v1.InterfaceStateLinkDown
		})
		m.Step(vm)
		Expect(states(vm)).To(Equal([]v1.InterfaceState{"", v1.InterfaceStateLinkDown}))
		Expect(InstanceOf(vm).Spec.NodeSelector).To(BeEmpty())
		Expect(ExpectExists(vm)).To(
			HaveVMCondition(v1.VirtualMachineFailure, corev1.ConditionTrue, "AffinityChangeError", ""))
	})

	It("makes an interface of the VMI absent", func() {
		vm, _ := runs()
		set(vm, v1.InterfaceStateAbsent)
		m.Step(vm)
		Expect(states(vm)).To(Equal([]v1.InterfaceState{"", v1.InterfaceStateAbsent}))
		Expect(ExpectExists(vm)).To(haveNoVMCondition(v1.VirtualMachineRestartRequired))
	})
})
