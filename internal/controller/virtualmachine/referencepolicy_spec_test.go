// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachine_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	cdiv1beta1 "github.com/vireo-project/vireo/api/cdi/v1beta1"
	"github.com/vireo-project/vireo/api/instancetype/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/test/builder"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

var _ = Describe("VirtualMachine whose references are to be expanded", func() {
	var m *vmHarness
	policy := func(p v1.InstancetypeReferencePolicy) {
		config := clusterconfig.Default()
		config.InstancetypeReferencePolicy = p
		m.Config = FixedConfig{Config: config}
	}
	BeforeEach(func() {
		m = newVMHarness()
		policy(v1.Expand)
		preference := NewPreference(m.ns, "linux")
		preference.Spec.Volumes = &v1beta1.VolumePreferences{PreferredStorageClassName: "fast"}
		ExpectCreated(preference)
	})
	halted := func() *builder.VM {
		return builder.MakeVM("vm").Strategy(v1.RunStrategyHalted).With(WithInstancetype("small"))
	}
	revisionOf := func(vm *v1.VirtualMachine) *appsv1.ControllerRevision {
		GinkgoHelper()
		name := ExpectExists(vm).Status.InstancetypeRef.ControllerRevisionRef.Name
		return ExpectExists(&appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Namespace: m.ns, Name: name}})
	}
	expectExpanded := func(vm *v1.VirtualMachine, cpus uint32) {
		GinkgoHelper()
		Expect(ExpectExists(vm).Spec.Instancetype).To(BeNil())
		Expect(vm.Spec.Preference).To(BeNil())
		Expect(vm.Status.InstancetypeRef).To(BeNil())
		Expect(vm.Status.PreferenceRef).To(BeNil())
		Expect(vm.Spec.Template.Spec.Domain.CPU.Sockets).To(Equal(cpus))
		Expect(vm.Spec.Template.Spec.Domain.Memory.Guest.String()).To(Equal("512Mi"))
	}

	It("gets the content of its instance type and its preference before it starts, and no revision of them", func() {
		vm := m.create(builder.MakeVM("vm").With(WithInstancetype("small")).With(WithPreference("linux")).With(
			func(vm *v1.VirtualMachine) {
				vm.Spec.DataVolumeTemplates = []v1.DataVolumeTemplateSpec{{ObjectMeta: metav1.ObjectMeta{Name: "data"},
					Spec: cdiv1beta1.DataVolumeSpec{
						Source:  &cdiv1beta1.DataVolumeSource{Blank: &cdiv1beta1.DataVolumeBlankImage{}},
						Storage: &cdiv1beta1.StorageSpec{},
					}}}
			}))
		m.Step(vm)
		Expect(ExpectExists(vm)).To(
			HaveVMCondition(v1.VirtualMachineFailure, corev1.ConditionTrue, "FailedFindInstancetype", "not found"))
		Expect(vm.Spec.Instancetype).NotTo(BeNil(), "a VM is not expanded by halves")

		ExpectCreated(NewInstancetype(m.ns, "small", 2))
		m.Step(vm)
		expectExpanded(vm, 2)
		Expect(vm.Spec.Template.Spec.Subdomain).To(Equal("preferred"))
		Expect(vm.Spec.DataVolumeTemplates[0].Spec.Storage.StorageClassName).To(HaveValue(Equal("fast")))
		Expect(specOf(DataVolume(m.ns, "data")).Storage.StorageClassName).To(HaveValue(Equal("fast")))
		Expect(m.revisions(vm)).To(BeEmpty())
		m.events.Take()
		m.expectQuiet(vm)
	})

	It("starts with what was written into it", func() {
		ExpectCreated(NewInstancetype(m.ns, "small", 2))
		vm := m.create(builder.MakeVM("vm").With(WithInstancetype("small")))
		m.Step(vm)
		expectExpanded(vm, 2)
		Expect(InstanceOf(vm).Spec.Domain.CPU.Sockets).To(BeEquivalentTo(2))
		Expect(m.revisions(vm)).To(ConsistOf(HaveField("Name", v1.StartRevisionName(vm.UID, vm.Generation))))
	})

	It("keeps its references if it has a revision, unless all are to be expanded", func() {
		policy(v1.Reference)
		small := NewInstancetype(m.ns, "small", 2)
		ExpectCreated(small)
		vm := m.create(halted())
		m.Step(vm)
		revision := revisionOf(vm)
		small.Spec.CPU.Guest = 7
		Expect(K8sClient.Update(ctx, small)).To(Succeed())

		policy(v1.Expand)
		m.expectQuiet(vm)
		Expect(ExpectExists(vm).Spec.Instancetype).NotTo(BeNil())
		policy(v1.ExpandAll)
		m.Step(vm)
		expectExpanded(vm, 2)
		ExpectGone(revision)
		m.expectQuiet(vm)
		policy(v1.Reference)
		m.expectQuiet(vm)
	})

	It("is expanded while it runs, needs no restart, and keeps the revision until the next start", func() {
		policy(v1.Reference)
		ExpectCreated(NewInstancetype(m.ns, "small", 2))
		vm := m.create(builder.MakeVM("vm").With(WithInstancetype("small")))
		m.Step(vm)
		revision, vmi := revisionOf(vm), InstanceOf(vm)
		SetVMIStatus(vmi, v1.Running, revised(vmi))
		m.Step(vm)

		policy(v1.ExpandAll)
		m.Step(vm)
		expectExpanded(vm, 2)
		Expect(vm).To(haveNoVMCondition(v1.VirtualMachineRestartRequired))
		Expect(generationsOf(vm)).To(Equal("generation 2 desired 2 observed 2 instance 2"))
		ExpectExists(revision)
		m.events.Take()
		m.expectQuiet(vm)

		m.endInstance(vm)
		m.Step(vm)
		Expect(InstanceOf(vm).Spec.Domain.CPU.Sockets).To(BeEquivalentTo(2))
		ExpectGone(revision)
	})

	It("is not changed if its instance type conflicts with its template", func() {
		ExpectCreated(NewInstancetype(m.ns, "small", 2))
		vm := m.create(halted().With(func(vm *v1.VirtualMachine) { vm.Spec.Template.Spec.Domain.CPU = &v1.CPU{Cores: 3} }))
		m.Step(vm)
		Expect(ExpectExists(vm)).To(HaveVMCondition(v1.VirtualMachineFailure, corev1.ConditionTrue, "FailedUpdateError",
			"VM conflicts with instancetype spec in fields: [spec.template.spec.domain.cpu.cores]"))
		Expect(vm.Spec.Instancetype).NotTo(BeNil())
		Expect(m.revisions(vm)).To(BeEmpty())
		m.events.Take()
		m.expectQuiet(vm)
	})

	It("is not changed from a stale cache", func() {
		ExpectCreated(NewInstancetype(m.ns, "small", 2), NewInstancetype(m.ns, "big", 4))
		vm := m.create(halted())
		m.Writes.Stale = vm.DeepCopy()
		vm.Spec.Instancetype.Name = "big"
		Expect(K8sClient.Update(ctx, vm)).To(Succeed())
		Expect(m.Step(vm)).NotTo(BeZero())
		Expect(ExpectExists(vm).Spec.Instancetype).To(HaveField("Name", "big"))
		m.Writes.Stale = nil
		m.Step(vm)
		expectExpanded(vm, 4)
	})

	It("keeps its own memory if its volume names no instance type", func() {
		ExpectCreated(builder.MakePVC("claim").Namespace(m.ns).Obj())
		vm := m.create(builder.MakeVM("vm").Strategy(v1.RunStrategyHalted).Template(
			builder.MakeVMI("vm").PVC("root", "claim")).
			With(func(vm *v1.VirtualMachine) {
				vm.Spec.Instancetype = &v1.InstancetypeMatcher{
					InferFromVolume: "root", InferFromVolumeFailurePolicy: ptr.To(v1.IgnoreInferFromVolumeFailure),
				}
			}))
		m.Step(vm)
		Expect(ExpectExists(vm).Spec.Instancetype).To(BeNil())
		Expect(vm.Spec.Template.Spec.Domain.Memory.Guest.String()).To(Equal("1Gi"))
		Expect(vm.Status.InstancetypeRef).To(BeNil())
		Expect(m.revisions(vm)).To(BeEmpty())
	})
})
