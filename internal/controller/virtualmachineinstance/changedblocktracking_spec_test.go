// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstance_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/labels"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/test/builder"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

var _ = Describe("The tracking of a VMI's changed blocks", func() {
	state := func(vmi *v1.VirtualMachineInstance) v1.ChangedBlockTrackingState {
		GinkgoHelper()
		if got := ExpectExists(vmi).Status.ChangedBlockTracking; got != nil {
			return got.State
		}
		return v1.ChangedBlockTrackingUndefined
	}
	// assigned returns a VMI with a disk on a claim that has just been assigned to its agent.
	assigned := func(config clusterconfig.Config, namespace bool, change func(*builder.VM) *builder.VM) (*world,
		*v1.VirtualMachineInstance) {
		GinkgoHelper()
		w := newWorld()
		w.Config = FixedConfig{Config: config}
		if namespace {
			LabelNamespace(w.ns)
		}
		vm := change(builder.MakeVM("vm").Namespace(w.ns).Template(builder.MakeVMI("vm"))).Obj()
		ExpectCreated(vm)
		ExpectCreated(builder.MakePVC("root").Namespace(w.ns).Bound("1Gi").Obj())
		vmi := w.create(builder.MakeVMI("vm").PVC("root", "root").OwnedBy(ExpectExists(vm)))
		w.Step(vmi)
		w.assign(vmi, "node-1")
		return w, vmi
	}
	plain := func(vm *builder.VM) *builder.VM { return vm }
	labeled := func(vm *builder.VM) *builder.VM { return vm.Label("backup", "yes") }

	It("is requested when it is assigned, and enabled when all of its disks have overlays", func() {
		w, vmi := assigned(TrackingConfig(true, BackedUp, nil), false, labeled)
		Expect(state(vmi)).To(Equal(v1.ChangedBlockTrackingInitializing))
		SetVMIStatus(vmi, v1.Running, Running)
		w.Step(vmi)
		Expect(state(vmi)).To(Equal(v1.ChangedBlockTrackingInitializing))
		SetVMIStatus(vmi, v1.Running, func(s *v1.VirtualMachineInstanceStatus) { s.TrackedVolumes = []string{"root"} })
		w.Step(vmi)
		Expect(state(vmi)).To(Equal(v1.ChangedBlockTrackingEnabled))
	})

	DescribeTable("is decided by labels and the feature gate",
		func(enabled, byVM, byNamespace, labelsVM, labelsNamespace bool, want v1.ChangedBlockTrackingState) {
			var vms, namespaces labels.Selector
			if byVM {
				vms = BackedUp
			}
			if byNamespace {
				namespaces = BackedUp
			}
			change := plain
			if labelsVM {
				change = labeled
			}
			_, vmi := assigned(TrackingConfig(enabled, vms, namespaces), labelsNamespace, change)
			Expect(state(vmi)).To(Equal(want))
		},
		Entry("the VM's labels", true, true, true, true, false, v1.ChangedBlockTrackingInitializing),
		Entry("the namespace's labels", true, true, true, false, true, v1.ChangedBlockTrackingInitializing),
		Entry("no matching labels", true, true, true, false, false, v1.ChangedBlockTrackingUndefined),
		Entry("no selector", true, false, false, true, true, v1.ChangedBlockTrackingUndefined),
		Entry("the gate is off", false, true, true, true, true, v1.ChangedBlockTrackingUndefined),
	)
})

var _ = Describe("The tracking of a VMI of a VM that was selected before", func() {
	It("is disabled", func() {
		w := newWorld()
		w.Config = FixedConfig{Config: TrackingConfig(true, nil, nil)}
		vm := builder.MakeVM("vm").Namespace(w.ns).Template(builder.MakeVMI("vm")).Obj()
		ExpectCreated(vm)
		vm.Status.ChangedBlockTracking = &v1.ChangedBlockTrackingStatus{State: v1.ChangedBlockTrackingDisabled}
		ExpectStatus(vm)
		vmi := w.create(builder.MakeVMI("vm").OwnedBy(ExpectExists(vm)))
		w.Step(vmi)
		w.assign(vmi, "node-1")
		Expect(ExpectExists(vmi).Status).To(And(HaveField("Phase", v1.Scheduled),
			HaveField("ChangedBlockTracking", HaveValue(HaveField("State", v1.ChangedBlockTrackingDisabled)))))
	})
})
