// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachine_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/vireo-project/vireo/api/instancetype"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/test/builder"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

var _ = Describe("VirtualMachine that is being restored", func() {
	const message = `Cannot start VM until restore "back" completes`
	var m *vmHarness
	BeforeEach(func() { m = newVMHarness() })

	locked := func(b *builder.VM) *v1.VirtualMachine {
		GinkgoHelper()
		vm := m.create(b)
		vm.Status.RestoreInProgress = ptr.To("back")
		ExpectStatus(vm)
		return vm
	}
	unlock := func(vm *v1.VirtualMachine) {
		GinkgoHelper()
		ExpectExists(vm).Status.RestoreInProgress = nil
		ExpectStatus(vm)
	}

	It("neither starts nor gets DataVolumes, says why once, and starts afterwards", func() {
		vm := locked(builder.MakeVM("vm").Template(builder.MakeVMI("vm").
			Volume("root", v1.VolumeSource{DataVolume: &v1.DataVolumeSource{Name: "root"}})).With(func(vm *v1.VirtualMachine) {
			vm.Spec.DataVolumeTemplates = []v1.DataVolumeTemplateSpec{{ObjectMeta: metav1.ObjectMeta{Name: "root"}}}
		}))
		m.Step(vm)
		Expect(ExpectExists(vm)).To(HaveVMCondition(v1.VirtualMachineFailure, corev1.ConditionTrue, "FailedCreate", message))
		Expect(vm.Status.RestoreInProgress).To(HaveValue(Equal("back")))
		Expect(m.events.Take()).To(ConsistOf("Warning FailedCreate: Error creating virtual machine instance: " + message))
		m.expectQuiet(vm)
		ExpectGone(InstanceKey(vm))
		ExpectGone(DataVolume(m.ns, "root"))

		unlock(vm)
		m.Step(vm)
		ExpectExists(DataVolume(m.ns, "root"))
		Expect(ExpectExists(vm)).To(haveNoVMCondition(v1.VirtualMachineFailure))
	})

	It("keeps a request to start until it is restored", func() {
		vm := locked(builder.MakeVM("vm").Strategy(v1.RunStrategyManual))
		m.Step(vm)
		Expect(callVerb(vm, "start", "")).To(Succeed())
		m.Step(vm)
		Expect(ExpectExists(vm)).To(HaveVMCondition(v1.VirtualMachineFailure, corev1.ConditionTrue, "FailedCreate", message))
		Expect(vm.Status.StateChangeRequests).To(HaveLen(1))
		ExpectGone(InstanceKey(vm))
		m.events.Take()
		m.expectQuiet(vm)
		unlock(vm)
		m.Step(vm)
		Expect(metav1.IsControlledBy(InstanceOf(vm), vm)).To(BeTrue())
		Expect(ExpectExists(vm).Status.StateChangeRequests).To(BeEmpty())
	})

	It("is not started by virt-api", func() {
		vm := locked(builder.MakeVM("vm").Strategy(v1.RunStrategyHalted))
		err := callVerb(vm, "start", "")
		Expect(err).To(MatchError(ContainSubstring(`Cannot update VM runStrategy until restore "back" completes`)))
		Expect(ExpectExists(vm).Spec.RunStrategy).To(HaveValue(Equal(v1.RunStrategyHalted)))
		unlock(vm)
		Expect(callVerb(vm, "start", "")).To(Succeed())
	})

	It("keeps a revision that it does not refer to yet", func() {
		vm := locked(builder.MakeVM("vm").Strategy(v1.RunStrategyHalted))
		revision := &appsv1.ControllerRevision{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: m.ns, Name: "vm-small-1",
				Labels: map[string]string{v1.CreatedByLabel: string(vm.UID),
					instancetype.ControllerRevisionObjectNameLabel: "small"},
				OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(vm, v1.VirtualMachineGroupVersionKind)},
			},
			Data: runtime.RawExtension{Raw: []byte(`{}`)},
		}
		ExpectCreated(revision)
		m.Settle(vm)
		ExpectExists(revision)
		unlock(vm)
		m.Step(vm)
		ExpectGone(revision)
	})
})
