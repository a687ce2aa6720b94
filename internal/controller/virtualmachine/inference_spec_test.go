// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachine_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/vireo-project/vireo/api/cdi"
	cdiv1beta1 "github.com/vireo-project/vireo/api/cdi/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/test/builder"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

var _ = Describe("VirtualMachine that infers its instance type", func() {
	var m *vmHarness
	BeforeEach(func() { m = newVMHarness() })

	names := map[string]string{
		"instancetype.kubevirt.io/default-instancetype":      "small",
		"instancetype.kubevirt.io/default-instancetype-kind": "VirtualMachineInstancetype",
	}
	ignore := ptr.To(v1.IgnoreInferFromVolumeFailure)
	// inferring returns a VM that infers from its volume root.
	inferring := func(root *builder.VMI, policy *v1.InferFromVolumeFailurePolicy) *builder.VM {
		return builder.MakeVM("vm").Template(root).With(func(vm *v1.VirtualMachine) {
			vm.Spec.Instancetype = &v1.InstancetypeMatcher{InferFromVolume: "root", InferFromVolumeFailurePolicy: policy}
			vm.Spec.Template.Spec.Domain.CPU = nil
			if policy == nil {
				vm.Spec.Template.Spec.Domain.Memory = nil
			}
		})
	}
	onClaim := func() *builder.VMI { return builder.MakeVMI("vm").PVC("root", "claim") }
	claim := func(labels map[string]string) *corev1.PersistentVolumeClaim {
		GinkgoHelper()
		claim := builder.MakePVC("claim").Namespace(m.ns).Obj()
		claim.Labels = labels
		ExpectCreated(claim)
		return claim
	}
	failure := func(vm *v1.VirtualMachine, message string) {
		GinkgoHelper()
		Expect(ExpectExists(vm)).To(
			HaveVMCondition(v1.VirtualMachineFailure, corev1.ConditionTrue, "FailedFindInstancetype", message))
	}

	It("reads it from the labels of its claim, once", func() {
		vm := m.create(inferring(onClaim(), nil))
		Expect(m.Step(vm).RequeueAfter).NotTo(BeZero(), "labels are not watched")
		failure(vm, "get PersistentVolumeClaim "+m.ns+"/claim")
		root := claim(nil)
		m.Step(vm)
		failure(vm, "unable to find required instancetype.kubevirt.io/default-instancetype label on the volume")
		ExpectExists(root).Labels = names
		Expect(K8sClient.Update(ctx, root)).To(Succeed())
		m.Step(vm)
		failure(vm, `virtualmachineinstancetypes.instancetype.kubevirt.io "small" not found`)

		ExpectCreated(NewInstancetype(m.ns, "small", 2))
		m.Step(vm)
		Expect(InstanceOf(vm).Spec.Domain.CPU.Sockets).To(BeEquivalentTo(2))
		Expect(InstanceOf(vm).Annotations).To(HaveKeyWithValue(v1.InstancetypeAnnotation, "small"))
		ref := ExpectExists(vm).Status.InstancetypeRef
		Expect(ref.Name).To(Equal("small"))
		Expect(ref.InferFromVolume).To(Equal("root"))
		Expect(vm.Spec.Instancetype).To(Equal(&v1.InstancetypeMatcher{InferFromVolume: "root"}),
			"the VM's spec is not changed")

		ExpectExists(root).Labels = map[string]string{"instancetype.kubevirt.io/default-instancetype": "another"}
		Expect(K8sClient.Update(ctx, root)).To(Succeed())
		m.events.Take()
		m.expectQuiet(vm)
	})

	It("starts without, and with its own memory, if its volume names none and it ignores that", func() {
		claim(nil)
		vm := m.create(inferring(onClaim(), ignore))
		m.Step(vm)
		Expect(InstanceOf(vm).Spec.Domain.Memory.Guest.String()).To(Equal("1Gi"))
		Expect(ExpectExists(vm).Status.InstancetypeRef).To(Equal(&v1.InstancetypeStatusRef{
			InferFromVolume: "root", InferFromVolumeFailurePolicy: ignore,
		}))
		m.events.Take()
		m.expectQuiet(vm)
	})

	It("leaves out the memory of its template if it would start without", func() {
		claim(names)
		ExpectCreated(NewInstancetype(m.ns, "small", 2))
		vm := m.create(inferring(onClaim(), ignore))
		m.Step(vm)
		Expect(InstanceOf(vm).Spec.Domain.Memory.Guest.String()).To(Equal("512Mi"))
		Expect(vm.Spec.Template.Spec.Domain.Memory.Guest.String()).To(Equal("1Gi"))
	})

	// onTemplate returns a VM whose volume root is a DataVolume of its own.
	onTemplate := func(spec cdiv1beta1.DataVolumeSpec) *builder.VM {
		root := builder.MakeVMI("vm").Volume("root", v1.VolumeSource{DataVolume: &v1.DataVolumeSource{Name: "claim"}})
		return inferring(root, nil).With(func(vm *v1.VirtualMachine) {
			vm.Spec.DataVolumeTemplates = []v1.DataVolumeTemplateSpec{{ObjectMeta: metav1.ObjectMeta{Name: "claim"}, Spec: spec}}
		})
	}

	It("waits until its DataVolume is filled, whose claim then has the labels of the image", func() {
		ExpectCreated(NewInstancetype(m.ns, "small", 2))
		vm := m.create(onTemplate(
			cdiv1beta1.DataVolumeSpec{Source: &cdiv1beta1.DataVolumeSource{Blank: &cdiv1beta1.DataVolumeBlankImage{}}}))
		m.Step(vm)
		Expect(ExpectExists(vm)).To(haveNoVMCondition(v1.VirtualMachineFailure))
		ExpectGone(InstanceKey(vm))
		claim(names)
		FillDataVolume(ExpectExists(DataVolume(m.ns, "claim")), cdi.DataVolumeSucceeded)
		m.Step(vm)
		Expect(ExpectExists(vm).Status.InstancetypeRef.Name).To(Equal("small"))
		Expect(InstanceOf(vm).Spec.Domain.CPU.Sockets).To(BeEquivalentTo(2))
	})

	It("reads a DataSource of another namespace only if it may copy its source", func() {
		golden := NewNamespace()
		source := builder.MakePVC("golden").Namespace(golden).Obj()
		ExpectCreated(source)
		named := &cdi.DataSource{ObjectMeta: metav1.ObjectMeta{Namespace: golden, Name: "image", Labels: names}}
		named.Spec.Source.PVC = &cdiv1beta1.DataVolumeSourcePVC{Namespace: golden, Name: "golden"}
		ExpectCreated(named)
		ExpectCreated(NewInstancetype(m.ns, "small", 2))
		vm := m.create(onTemplate(cdiv1beta1.DataVolumeSpec{SourceRef: &cdiv1beta1.DataVolumeSourceRef{
			Kind: "DataSource", Namespace: ptr.To(golden), Name: "image",
		}}))
		Expect(m.Step(vm)).NotTo(BeZero())
		failure(vm, "ServiceAccount default has insufficient permissions in clone source namespace "+golden)
		Expect(vm.Status.InstancetypeRef).To(BeNil())

		allowCopies(golden, m.ns)
		Eventually(func() *v1.InstancetypeStatusRef {
			m.Step(vm)
			return ExpectExists(vm).Status.InstancetypeRef
		}).Should(HaveField("Name", "small"))
	})
})
