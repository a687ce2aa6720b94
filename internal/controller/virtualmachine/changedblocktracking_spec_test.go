// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachine_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/test/builder"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

var _ = Describe("The tracking of a VM's changed blocks", func() {
	var m *vmHarness
	BeforeEach(func() { m = newVMHarness() })
	expectState := func(vm *v1.VirtualMachine, config clusterconfig.Config, want v1.ChangedBlockTrackingState) {
		GinkgoHelper()
		m.Config = FixedConfig{Config: config}
		m.Step(vm)
		if got := ExpectExists(vm).Status.ChangedBlockTracking; want == v1.ChangedBlockTrackingUndefined {
			Expect(got).To(BeNil())
		} else {
			Expect(got).To(HaveField("State", want))
		}
	}

	It("follows the selectors, the gate and the running guest", func() {
		vm, vmi := m.started(builder.MakeVM("vm").Label("backup", "yes"))
		SetVMIStatus(vmi, v1.Running, func(s *v1.VirtualMachineInstanceStatus) { s.NodeName = "node-1" })
		expectState(vm, TrackingConfig(true, nil, nil), v1.ChangedBlockTrackingUndefined)
		expectState(vm, TrackingConfig(false, BackedUp, nil), v1.ChangedBlockTrackingFGDisabled)
		expectState(vm, TrackingConfig(true, BackedUp, nil), v1.ChangedBlockTrackingPendingRestart)
		SetVMIStatus(vmi, v1.Running, func(s *v1.VirtualMachineInstanceStatus) {
			s.ChangedBlockTracking = &v1.ChangedBlockTrackingStatus{State: v1.ChangedBlockTrackingEnabled}
		})
		expectState(vm, TrackingConfig(true, BackedUp, nil), v1.ChangedBlockTrackingEnabled)
		expectState(vm, TrackingConfig(true, nil, nil), v1.ChangedBlockTrackingPendingRestart)
		By("while the gate is off, and the guest is tracked")
		expectState(vm, TrackingConfig(false, BackedUp, nil), v1.ChangedBlockTrackingPendingRestart)
		By("when it is not")
		SetVMIStatus(vmi, v1.Running, func(s *v1.VirtualMachineInstanceStatus) { s.ChangedBlockTracking = nil })
		expectState(vm, TrackingConfig(true, nil, nil), v1.ChangedBlockTrackingDisabled)
		expectState(vm, TrackingConfig(false, nil, nil), v1.ChangedBlockTrackingUndefined)
		LabelNamespace(m.ns)
		expectState(vm, TrackingConfig(true, nil, BackedUp), v1.ChangedBlockTrackingPendingRestart)
	})

	It("stays enabled while the VM is stopped", func() {
		vm := m.create(builder.MakeVM("vm").Label("backup", "yes").Strategy(v1.RunStrategyHalted))
		expectState(vm, TrackingConfig(true, BackedUp, nil), v1.ChangedBlockTrackingInitializing)
		vm.Status.ChangedBlockTracking = &v1.ChangedBlockTrackingStatus{State: v1.ChangedBlockTrackingEnabled}
		ExpectStatus(vm)
		expectState(vm, TrackingConfig(true, BackedUp, nil), v1.ChangedBlockTrackingEnabled)
		expectState(vm, TrackingConfig(true, nil, nil), v1.ChangedBlockTrackingDisabled)
	})
})
