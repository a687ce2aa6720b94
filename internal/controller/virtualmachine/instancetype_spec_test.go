// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachine_test

import (
	"encoding/json"
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	cdiv1beta1 "github.com/vireo-project/vireo/api/cdi/v1beta1"
	"github.com/vireo-project/vireo/api/instancetype/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/decide/instancetype/reference"
	"github.com/vireo-project/vireo/test/builder"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

var _ = Describe("VirtualMachine with an instance type", func() {
	var m *vmHarness
	BeforeEach(func() { m = newVMHarness() })

	stored := func(ref *v1.InstancetypeStatusRef) *appsv1.ControllerRevision {
		GinkgoHelper()
		Expect(ref).NotTo(BeNil())
		return ExpectExists(&appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Namespace: m.ns,
			Name: ref.ControllerRevisionRef.Name}})
	}
	failure := func(vm *v1.VirtualMachine, reason, message string) {
		GinkgoHelper()
		Expect(ExpectExists(vm)).To(HaveVMCondition(v1.VirtualMachineFailure, corev1.ConditionTrue, reason, message))
	}

	It("waits for what it refers to, stores it and starts with it", func() {
		vm := m.create(builder.MakeVM("vm").With(WithInstancetype("small")).With(WithPreference("linux")).With(
			func(vm *v1.VirtualMachine) {
				vm.Spec.Preference.Kind = "virtualmachinepreference"
			}))
		m.Step(vm)
		failure(vm, "FailedFindInstancetype", `virtualmachineinstancetypes.instancetype.kubevirt.io "small" not found`)
		Expect(m.events.Take()).To(ConsistOf(`Warning FailedFindInstancetype: virtualmachineinstancetypes.instancetype.kubevirt.io "small" not found`))
		m.expectQuiet(vm)
		ExpectGone(InstanceKey(vm))

		small := NewInstancetype(m.ns, "small", 2)
		small.Labels = map[string]string{"size": "small"}
		ExpectCreated(small)
		m.Step(vm)
		failure(vm, "FailedFindPreference", `virtualmachinepreferences.instancetype.kubevirt.io "linux" not found`)
		Expect(m.revisions(vm)).To(BeEmpty())

		ExpectCreated(NewPreference(m.ns, "linux"))
		m.Step(vm)
		Expect(ExpectExists(vm)).To(haveNoVMCondition(v1.VirtualMachineFailure))
		vmi := InstanceOf(vm)
		Expect(vmi.Spec.Domain.CPU.Sockets).To(BeEquivalentTo(2))
		Expect(vmi.Spec.Domain.Memory.Guest.String()).To(Equal("512Mi"))
		Expect(vmi.Spec.Subdomain).To(Equal("preferred"))
		Expect(vmi.Annotations).To(
			And(HaveKeyWithValue(v1.InstancetypeAnnotation, "small"), HaveKeyWithValue(v1.PreferenceAnnotation, "linux")))
		Expect(vm.Spec.Template.Spec.Domain.CPU).To(BeNil(), "the VM's spec is not changed")

		ref := vm.Status.InstancetypeRef
		Expect(ref.Name).To(Equal("small"))
		Expect(ref.Kind).To(Equal("VirtualMachineInstancetype"))
		Expect(ref.ControllerRevisionRef.Name).To(Equal(fmt.Sprintf("vm-small-v1beta1-%s-1", small.UID)))
		revision := stored(ref)
		Expect(metav1.IsControlledBy(revision, vm)).To(BeTrue())
		Expect(revision.Labels).To(HaveKeyWithValue("instancetype.kubevirt.io/object-name", "small"))
		Expect(vm.Status.PreferenceRef.Name).To(Equal("linux"))
		Expect(vm.Status.PreferenceRef.Kind).To(Equal("virtualmachinepreference"), "as the VM spells it")
		Expect(stored(vm.Status.PreferenceRef).Labels).To(
			HaveKeyWithValue("instancetype.kubevirt.io/object-kind", "VirtualMachinePreference"))

		By("recording the names of the stored objects with the spec of the start")
		start := ExpectExists(&appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{
			Namespace: m.ns, Name: v1.StartRevisionName(vm.UID, vm.Generation),
		}})
		data := map[string]v1.VirtualMachineSpec{}
		Expect(json.Unmarshal(start.Data.Raw, &data)).To(Succeed())
		Expect(data["spec"].Instancetype.RevisionName).To(Equal(ref.ControllerRevisionRef.Name))
		Expect(data["spec"].Preference.RevisionName).To(Equal(vm.Status.PreferenceRef.ControllerRevisionRef.Name))
		m.events.Take()
		m.expectQuiet(vm)
	})

	It("keeps what it stored, also while it is halted, when the object changes or is deleted", func() {
		small := NewInstancetype(m.ns, "small", 2)
		ExpectCreated(small)
		vm := m.create(builder.MakeVM("vm").Strategy(v1.RunStrategyHalted).With(WithInstancetype("small")))
		m.Step(vm)
		stored(ExpectExists(vm).Status.InstancetypeRef)
		m.expectQuiet(vm)
		small.Spec.CPU.Guest = 8
		Expect(K8sClient.Update(ctx, small)).To(Succeed())
		m.expectQuiet(vm)
		Expect(K8sClient.Delete(ctx, small)).To(Succeed())
		EditVM(vm, func(vm *v1.VirtualMachine) { vm.SetRunStrategy(v1.RunStrategyAlways) })
		m.Step(vm)
		Expect(InstanceOf(vm).Spec.Domain.CPU.Sockets).To(BeEquivalentTo(2))
	})

	It("does not store an instance type that conflicts with its template", func() {
		ExpectCreated(NewInstancetype(m.ns, "small", 2))
		vm := m.create(builder.MakeVM("vm").With(WithInstancetype("small")).With(func(vm *v1.VirtualMachine) {
			vm.Spec.Template.Spec.Domain.CPU = &v1.CPU{Sockets: 4}
		}))
		m.Step(vm)
		failure(vm, "FailedCreate", "error encountered while storing instancetype.kubevirt.io controllerRevisions: "+
			"VM field(s) spec.template.spec.domain.cpu.sockets conflicts with selected instance type")
		Expect(vm.Status.InstancetypeRef).To(BeNil())
		Expect(m.revisions(vm)).To(BeEmpty())
		ExpectGone(InstanceKey(vm))
		m.events.Take()
		m.expectQuiet(vm)

		changeTemplate(vm, func(t *v1.VirtualMachineInstanceTemplateSpec) { t.Spec.Domain.CPU = nil })
		m.Step(vm)
		stored(ExpectExists(vm).Status.InstancetypeRef)
		vmi := InstanceOf(vm)

		By("changing the template into a conflict while it is stopped")
		EditVM(vm, func(vm *v1.VirtualMachine) {
			vm.SetRunStrategy(v1.RunStrategyHalted)
			vm.Spec.Template.Spec.Domain.CPU = &v1.CPU{Sockets: 4}
		})
		m.Step(vm)
		expectStopping(vmi)
		SetVMIStatus(vmi, v1.Succeeded)
		removeFinalizer(vmi)
		m.Step(vm)
		ExpectGone(vmi)
		EditVM(vm, func(vm *v1.VirtualMachine) { vm.SetRunStrategy(v1.RunStrategyAlways) })
		m.events.Take()
		m.Step(vm)
		failure(vm, "FailedCreate",
			"Failed to apply instancetype: VMI conflicts with instancetype spec in fields: [spec.domain.cpu.sockets]")
		Expect(m.events.Take()).To(
			ConsistOf(HavePrefix(
				"Warning FailedCreate: Error creating virtual machine instance: Failed to apply instancetype: ")))
		ExpectGone(vmi)
	})

	It("uses a ControllerRevision that exists, and refuses one with another content", func() {
		small := NewInstancetype(m.ns, "small", 2)
		ExpectCreated(small)
		vm := m.create(builder.MakeVM("vm").With(WithInstancetype("small")))
		other := NewInstancetype(m.ns, "small", 9)
		other.UID, other.Generation = small.UID, small.Generation
		revision, err := reference.NewRevision(vm, other)
		Expect(err).NotTo(HaveOccurred())
		ExpectCreated(revision)
		_, err = m.Try(vm)
		Expect(err).To(MatchError(
			ContainSubstring("found existing ControllerRevision with unexpected data: " + revision.Name)))
		failure(vm, "FailedCreate", "found existing ControllerRevision with unexpected data: "+revision.Name)
		ExpectGone(InstanceKey(vm))
		Expect(K8sClient.Delete(ctx, revision)).To(Succeed())

		By("finding the right one, without an owner")
		revision, err = reference.NewRevision(vm, small)
		Expect(err).NotTo(HaveOccurred())
		revision.OwnerReferences, revision.Labels = nil, nil
		ExpectCreated(revision)
		m.Step(vm)
		Expect(metav1.IsControlledBy(ExpectExists(revision), vm)).To(BeTrue())
		Expect(revision.Labels).To(HaveKeyWithValue(v1.CreatedByLabel, string(vm.UID)))
		Expect(stored(ExpectExists(vm).Status.InstancetypeRef).Name).To(Equal(revision.Name))
		Expect(InstanceOf(vm).Spec.Domain.CPU.Sockets).To(BeEquivalentTo(2))
	})

	It("replaces the ControllerRevision of an earlier VM of its name", func() {
		small := NewInstancetype(m.ns, "small", 2)
		ExpectCreated(small)
		vm := m.create(builder.MakeVM("vm").With(WithInstancetype("small")))
		earlier := vm.DeepCopy()
		earlier.UID = "earlier"
		revision, err := reference.NewRevision(earlier, small)
		Expect(err).NotTo(HaveOccurred())
		ExpectCreated(revision)
		m.Step(vm)
		Expect(metav1.IsControlledBy(ExpectExists(revision), vm)).To(BeTrue())
		Expect(stored(ExpectExists(vm).Status.InstancetypeRef).Name).To(Equal(revision.Name))
		Expect(InstanceOf(vm).Spec.Domain.CPU.Sockets).To(BeEquivalentTo(2))
	})

	It("needs a restart for an instance type with more CPUs than the guest can get, and deletes the stored one that nothing uses any more", func() {
		ExpectCreated(NewInstancetype(m.ns, "small", 2), NewInstancetype(m.ns, "big", 4))
		vm := m.create(builder.MakeVM("vm").With(WithInstancetype("small")))
		m.Step(vm)
		first := stored(ExpectExists(vm).Status.InstancetypeRef)
		vmi := InstanceOf(vm)
		SetVMIStatus(vmi, v1.Running, revised(vmi))
		m.Step(vm)

		EditVM(vm, func(vm *v1.VirtualMachine) { vm.Spec.Instancetype.Name = "big" })
		m.Step(vm)
		Expect(ExpectExists(vm)).To(HaveVMCondition(v1.VirtualMachineRestartRequired, corev1.ConditionTrue, "",
			"CPU sockets updated in template spec to a value higher than what's available"))
		Expect(vm.Status.InstancetypeRef.Name).To(Equal("big"))
		ExpectExists(first)
		m.events.Take()
		m.expectQuiet(vm)

		m.endInstance(vm)
		ExpectExists(first)
		m.Step(vm)
		ExpectGone(first)
		Expect(m.revisions(vm)).To(HaveLen(2), "those of this start and of its instance type")
		Expect(InstanceOf(vm).Spec.Domain.CPU.Sockets).To(BeEquivalentTo(4))

		By("referring to nothing any more")
		second := stored(ExpectExists(vm).Status.InstancetypeRef)
		vmi = InstanceOf(vm)
		SetVMIStatus(vmi, v1.Running, revised(vmi))
		m.Step(vm)
		EditVM(vm, func(vm *v1.VirtualMachine) {
			vm.Spec.Instancetype = nil
			vm.Spec.Template.Spec.Domain.CPU = &v1.CPU{Sockets: 4, Cores: 1, Threads: 1}
			vm.Spec.Template.Spec.Domain.Memory = &v1.Memory{Guest: ptr.To(resource.MustParse("512Mi"))}
		})
		m.Step(vm)
		Expect(ExpectExists(vm)).To(haveNoVMCondition(v1.VirtualMachineRestartRequired))
		Expect(vm.Status.InstancetypeRef).To(BeNil())
		Expect(generationsOf(vm)).To(Equal("generation 3 desired 3 observed 3 instance 3"))
		ExpectExists(second)
	})

	It("keeps running when its instance type is replaced by one that does not exist", func() {
		ExpectCreated(NewInstancetype(m.ns, "small", 2))
		vm := m.create(builder.MakeVM("vm").With(WithInstancetype("small")))
		m.Step(vm)
		vmi := InstanceOf(vm)
		SetVMIStatus(vmi, v1.Running, revised(vmi))
		m.Step(vm)
		EditVM(vm, func(vm *v1.VirtualMachine) { vm.Spec.Instancetype.Name = "missing" })
		m.Step(vm)
		failure(vm, "FailedFindInstancetype", `"missing" not found`)
		Expect(vm.Status.InstancetypeRef.Name).To(Equal("small"))
		Expect(InstanceOf(vm).DeletionTimestamp).To(BeNil())
		EditVM(vm, func(vm *v1.VirtualMachine) { vm.SetRunStrategy(v1.RunStrategyHalted) })
		m.Step(vm)
		expectStopping(vmi)
		Expect(show(vm)).To(Equal(v1.VirtualMachineStatusStopping))
	})

	It("uses the ControllerRevision that its matcher names, once it exists", func() {
		vm := m.create(builder.MakeVM("vm").With(WithInstancetype("small")).With(func(vm *v1.VirtualMachine) {
			vm.Spec.Instancetype.RevisionName = "pinned"
		}))
		result := m.Step(vm)
		failure(vm, "FailedFindInstancetype", `controllerrevisions.apps "pinned" not found`)
		ExpectGone(InstanceKey(vm))
		Expect(result.RequeueAfter).NotTo(BeZero(), "ControllerRevisions of others are not watched")
		small := NewInstancetype(m.ns, "small", 3)
		revision, err := reference.NewRevision(vm, small)
		Expect(err).NotTo(HaveOccurred())
		revision.Name, revision.OwnerReferences, revision.Labels = "pinned", nil, nil
		ExpectCreated(revision)
		m.Step(vm)
		Expect(InstanceOf(vm).Spec.Domain.CPU.Sockets).To(BeEquivalentTo(3))
		Expect(ExpectExists(vm).Status.InstancetypeRef.ControllerRevisionRef.Name).To(Equal("pinned"))
		m.events.Take()
		m.expectQuiet(vm)
		Expect(ExpectExists(revision).Labels).To(BeEmpty(), "it is not the VM's")
	})

	It("reports a ControllerRevision of an alpha version", func() {
		ExpectCreated(&appsv1.ControllerRevision{
			ObjectMeta: metav1.ObjectMeta{Namespace: m.ns, Name: "alpha"}, Data: runtime.RawExtension{
				Raw: []byte(`{"apiVersion":"instancetype.kubevirt.io/v1alpha1","spec":{}}`),
			},
		})
		vm := m.create(builder.MakeVM("vm").With(WithInstancetype("small")).With(func(vm *v1.VirtualMachine) {
			vm.Spec.Instancetype.RevisionName = "alpha"
		}))
		Expect(m.Step(vm).RequeueAfter).To(BeZero())
		failure(vm, "FailedFindInstancetype", "failed to decode object in ControllerRevision")
		ExpectGone(InstanceKey(vm))
	})

	It("takes over the ControllerRevisions of KubeVirt", func() {
		small := NewInstancetype(m.ns, "small", 2)
		ExpectCreated(small)
		vm := m.create(builder.MakeVM("vm").Strategy(v1.RunStrategyHalted).With(WithInstancetype("small")))
		theirs := func(name string, drop ...string) *appsv1.ControllerRevision {
			GinkgoHelper()
			return kubeVirtRevision(vm, small, name, drop...)
		}
		By("labeling one that has today's form")
		revision := theirs("", v1.CreatedByLabel)
		m.Step(vm)
		Expect(ExpectExists(revision).Labels).To(HaveKeyWithValue(v1.CreatedByLabel, string(vm.UID)))
		m.expectQuiet(vm)
		Expect(K8sClient.Delete(ctx, revision)).To(Succeed())

		By("storing one of an earlier version anew")
		old := theirs("vm-small-old", v1.CreatedByLabel, "instancetype.kubevirt.io/object-version")
		m.Step(vm)
		ExpectGone(old)
		Expect(stored(ExpectExists(vm).Status.InstancetypeRef).Name).To(Equal(revision.Name))
		m.events.Take()
		m.expectQuiet(vm)
	})

	It("keeps a ControllerRevision of an earlier version until its replacement is stored", func() {
		small := NewInstancetype(m.ns, "small", 2)
		vm := m.create(builder.MakeVM("vm").Strategy(v1.RunStrategyHalted).With(WithInstancetype("small")).With(
			WithPreference("missing")))
		old := kubeVirtRevision(vm, small, "vm-small-old", v1.CreatedByLabel, "instancetype.kubevirt.io/object-version")
		m.Step(vm)
		failure(vm, "FailedFindPreference", `virtualmachinepreferences.instancetype.kubevirt.io "missing" not found`)
		ExpectExists(old)
		Expect(ExpectExists(vm).Status.InstancetypeRef.ControllerRevisionRef.Name).To(Equal(old.Name))
	})

	It("gives its DataVolumes the storage class of its preference", func() {
		preference := NewPreference(m.ns, "linux")
		preference.Spec.Volumes = &v1beta1.VolumePreferences{PreferredStorageClassName: "fast"}
		ExpectCreated(preference)
		template := func(name string, class *string) v1.DataVolumeTemplateSpec {
			return v1.DataVolumeTemplateSpec{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: cdiv1beta1.DataVolumeSpec{
				Source:  &cdiv1beta1.DataVolumeSource{Blank: &cdiv1beta1.DataVolumeBlankImage{}},
				Storage: &cdiv1beta1.StorageSpec{StorageClassName: class},
			}}
		}
		vm := m.create(builder.MakeVM("vm").With(WithPreference("linux")).With(func(vm *v1.VirtualMachine) {
			vm.Spec.DataVolumeTemplates = []v1.DataVolumeTemplateSpec{template("root", nil), template("data", ptr.To("slow"))}
		}))
		m.Step(vm)
		Expect(specOf(DataVolume(m.ns, "root")).Storage.StorageClassName).To(HaveValue(Equal("fast")))
		Expect(specOf(DataVolume(m.ns, "data")).Storage.StorageClassName).To(HaveValue(Equal("slow")))
		Expect(ExpectExists(vm).Spec.DataVolumeTemplates[0].Spec.Storage.StorageClassName).To(BeNil())
	})

	It("does not use an instance type of another namespace", func() {
		ExpectCreated(NewInstancetype(NewNamespace(), "small", 2))
		vm := m.create(builder.MakeVM("vm").With(WithInstancetype("small")))
		m.Step(vm)
		failure(vm, "FailedFindInstancetype", "not found")
		ExpectGone(InstanceKey(vm))
	})
})

// kubeVirtRevision creates a ControllerRevision with an instance type as KubeVirt does, without some labels, and makes
// the VM's status refer to it. An empty name is today's.
func kubeVirtRevision(
	vm *v1.VirtualMachine, object *v1beta1.VirtualMachineInstancetype, name string, drop ...string,
) *appsv1.ControllerRevision {
	GinkgoHelper()
	ExpectExists(vm)
	revision, err := reference.NewRevision(vm, object)
	Expect(err).NotTo(HaveOccurred())
	for _, label := range drop {
		delete(revision.Labels, label)
	}
	if name != "" {
		revision.Name = name
	}
	ExpectCreated(revision)
	vm.Status.InstancetypeRef = &v1.InstancetypeStatusRef{
		Name: object.Name, Kind: "VirtualMachineInstancetype",
		ControllerRevisionRef: &v1.ControllerRevisionRef{Name: revision.Name},
	}
	Expect(K8sClient.Status().Update(ctx, vm)).To(Succeed())
	return revision
}
