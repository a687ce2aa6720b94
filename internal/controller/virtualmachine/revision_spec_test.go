// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachine_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strconv"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/decide/firmware"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/test/builder"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

// revisions returns the ControllerRevisions of a VM: those of its starts, of its instance type and of its preference.
func (m *vmHarness) revisions(vm *v1.VirtualMachine) []appsv1.ControllerRevision {
	GinkgoHelper()
	list := &appsv1.ControllerRevisionList{}
	Expect(K8sClient.List(ctx, list, client.InNamespace(vm.Namespace),
		client.MatchingLabels{v1.CreatedByLabel: string(vm.UID)})).To(Succeed())
	return list.Items
}

// revised writes the revision's name to a VMI's status, as the VMI's reconciler does.
func revised(vmi *v1.VirtualMachineInstance) func(*v1.VirtualMachineInstanceStatus) {
	return func(s *v1.VirtualMachineInstanceStatus) {
		generation, err := strconv.ParseInt(vmi.Annotations[v1.VirtualMachineGenerationAnnotation], 10, 64)
		Expect(err).NotTo(HaveOccurred())
		s.VirtualMachineRevisionName = v1.StartRevisionName(metav1.GetControllerOf(vmi).UID, generation)
	}
}

var _ = Describe("VirtualMachine with a changed template", func() {
	var m *vmHarness
	BeforeEach(func() { m = newVMHarness() })

	// runs starts a VM; its VMI runs and has the revision in its status.
	runs := func(b *builder.VM) (*v1.VirtualMachine, *v1.VirtualMachineInstance) {
		GinkgoHelper()
		vm, vmi := m.started(b)
		SetVMIStatus(vmi, v1.Running, revised(vmi))
		return vm, vmi
	}
	more := func(t *v1.VirtualMachineInstanceTemplateSpec) {
		t.Spec.Domain.CPU = &v1.CPU{Cores: 3}
	}
	const specChanged = "a non-live-updatable field was changed in the template spec"

	It("records the spec of each start in a ControllerRevision, once for each generation", func() {
		vm, _ := runs(builder.MakeVM("vm"))
		found := m.revisions(vm)
		Expect(found).To(HaveLen(1))
		Expect(found[0].Name).To(Equal(fmt.Sprintf("revision-start-vm-%s-1", vm.UID)))
		Expect(found[0].Revision).To(Equal(int64(1)))
		Expect(metav1.IsControlledBy(&found[0], vm)).To(BeTrue())
		data := map[string]v1.VirtualMachineSpec{}
		Expect(json.Unmarshal(found[0].Data.Raw, &data)).To(Succeed())
		Expect(data).To(HaveKeyWithValue("spec", vm.Spec))

		changeTemplate(vm, more)
		m.Step(vm)
		Expect(m.revisions(vm)).To(HaveLen(1), "a changed template creates no revision before the next start")
		m.endInstance(vm)
		// The instance refers to the revision, and a revision is deleted only when no instance refers to it.
		m.ExpectOrder(vm, createVMRevision, createInstance, deleteVMRevision, patchVMStatus)
		found = m.revisions(vm)
		Expect(found).To(HaveLen(1))
		Expect(found[0].Revision).To(Equal(int64(2)))
		Expect(generationsOf(vm)).To(Equal("generation 2 desired 2 observed 2 instance 2"))
	})

	It("records quantities as the VM has them, which clients compare", func() {
		vm := m.create(builder.MakeVM("vm").Strategy(v1.RunStrategyHalted))
		raw := client.RawPatch(types.MergePatchType, []byte(
			`{"spec":{"runStrategy":"Always","template":{"spec":{"domain":{"memory":{"guest":"131072Ki"}}}}}}`))
		Expect(K8sClient.Patch(ctx, vm, raw)).To(Succeed())
		m.Step(vm)
		stored := &unstructured.Unstructured{}
		stored.SetGroupVersionKind(v1.VirtualMachineGroupVersionKind)
		Expect(K8sClient.Get(ctx, client.ObjectKeyFromObject(vm), stored)).To(Succeed())
		want, err := json.Marshal(map[string]any{"spec": stored.Object["spec"]})
		Expect(err).NotTo(HaveOccurred())
		Expect(m.revisions(vm)[0].Data.Raw).To(MatchJSON(want))
		Expect(string(want)).To(ContainSubstring(`"guest":"131072Ki"`))
	})

	It("does not start from a spec that has changed since it was read", func() {
		vm := m.create(builder.MakeVM("vm"))
		m.Writes.Stale = vm.DeepCopy()
		changeTemplate(vm, more)
		m.Step(vm)
		Expect(m.revisions(vm)).To(BeEmpty())
		ExpectGone(InstanceKey(vm))
		m.Writes.Stale = nil
		m.Step(vm)
		Expect(m.revisions(vm)).To(HaveLen(1))
		Expect(InstanceOf(vm).Spec.Domain.CPU.Cores).To(BeEquivalentTo(3))
	})

	It("keeps the firmware's UUID and serial across starts, also for a revision without the recorded identity", func() {
		vm, vmi := runs(builder.MakeVM("vm"))
		first := *vmi.Spec.Domain.Firmware
		Expect(first.UUID).NotTo(BeEmpty())
		Expect(first.Serial).NotTo(BeEmpty())
		Expect(m.revisions(vm)[0].Annotations).To(HaveKeyWithValue(firmware.IdentityAnnotation, "vm-uid"))
		changeTemplate(vm, more)
		m.Step(vm)
		m.endInstance(vm)
		m.Step(vm)
		vmi = InstanceOf(vm)
		Expect(*vmi.Spec.Domain.Firmware).To(Equal(first))

		By("removing what the revision records, and the VM's record")
		recorded := m.revisions(vm)[0]
		delete(recorded.Annotations, firmware.IdentityAnnotation)
		Expect(K8sClient.Update(ctx, &recorded)).To(Succeed())
		SetVMIStatus(vmi, v1.Running, revised(vmi))
		m.Step(vm)
		changeTemplate(vm, func(t *v1.VirtualMachineInstanceTemplateSpec) { t.Spec.Domain.CPU = &v1.CPU{Sockets: 2} })
		m.Step(vm)
		m.endInstance(vm)
		m.Step(vm)
		Expect(*InstanceOf(vm).Spec.Domain.Firmware).To(Equal(first), "the VM has a record of its own")
		Expect(m.revisions(vm)[0].Annotations).To(HaveKeyWithValue(firmware.IdentityAnnotation, "vm-name"))
		m.endInstance(vm)
		delete(ExpectExists(vm).Annotations, firmware.RecordAnnotation)
		Expect(K8sClient.Update(ctx, vm)).To(Succeed())
		m.Step(vm)
		older := *InstanceOf(vm).Spec.Domain.Firmware
		Expect(older.UUID).NotTo(Equal(first.UUID))
		Expect(older.Serial).To(BeEmpty())
	})

	It("keeps the identity of a VM that a backup tool has created again from its name, labels, annotations and spec",
		func() {
			vm, vmi := runs(builder.MakeVM("vm"))
			identity := *vmi.Spec.Domain.Firmware
			before := ExpectExists(vm)
			Expect(before.Spec.Template.Spec.Domain.Firmware).To(BeNil(), "the spec is never changed")
			copied := func(name string) *v1.VirtualMachine {
				return &v1.VirtualMachine{
					ObjectMeta: metav1.ObjectMeta{
						Namespace: before.Namespace, Name: name, Labels: before.Labels, Annotations: maps.Clone(before.Annotations),
					},
					Spec: *before.Spec.DeepCopy(),
				}
			}
			By("copying it under another name: that is another VM")
			other := copied("copy")
			Expect(K8sClient.Create(ctx, other)).To(Succeed())
			m.Step(other)
			Expect(*InstanceOf(other).Spec.Domain.Firmware).NotTo(Equal(identity))
			record, found := firmware.RecordOf(other.Namespace, other.Name, ExpectExists(other).Annotations)
			Expect(found).To(BeTrue())
			Expect(string(InstanceOf(other).Spec.Domain.Firmware.UUID)).To(Equal(record.UUID))

			By("deleting it and creating it again")
			Expect(K8sClient.Delete(ctx, vmi)).To(Succeed())
			SetVMIStatus(vmi, v1.Succeeded)
			removeFinalizer(vmi)
			Expect(K8sClient.Delete(ctx, before)).To(Succeed())
			for range 2 {
				m.Step(before)
			}
			restored := copied(before.Name)
			Expect(K8sClient.Create(ctx, restored)).To(Succeed())
			Expect(restored.UID).NotTo(Equal(before.UID))
			m.Step(restored)
			Expect(*InstanceOf(restored).Spec.Domain.Firmware).To(Equal(identity))
		})

	It("requires a restart for a change that cannot be applied live, until the VM is stopped", func() {
		vm, vmi := runs(builder.MakeVM("vm"))
		changeTemplate(vm, more)
		m.Step(vm)
		Expect(ExpectExists(vm)).To(
			HaveVMCondition(v1.VirtualMachineRestartRequired, corev1.ConditionTrue, "", specChanged+": domain.cpu."))
		Expect(generationsOf(vm)).To(Equal("generation 2 desired 2 observed 1 instance 1"))
		Expect(InstanceOf(vm).Spec.Domain.CPU).To(Equal(vmi.Spec.Domain.CPU))
		m.events.Take()
		m.expectQuiet(vm)

		By("not applying a live-updatable change while another change needs a restart")
		changeTemplate(vm, func(t *v1.VirtualMachineInstanceTemplateSpec) {
			t.Spec.NodeSelector = map[string]string{
				"zone": "a"}
		})
		m.Step(vm)
		Expect(InstanceOf(vm).Spec.NodeSelector).To(BeEmpty())
		Expect(generationsOf(vm)).To(Equal("generation 3 desired 3 observed 1 instance 1"))

		Expect(K8sClient.Delete(ctx, vmi)).To(Succeed())
		m.Step(vm)
		Expect(ExpectExists(vm)).To(haveNoVMCondition(v1.VirtualMachineRestartRequired))
	})

	It("no longer requires a restart when the change is reverted", func() {
		vm, _ := runs(builder.MakeVM("vm"))
		before := vm.Spec.Template.Spec.Domain.CPU.DeepCopy()
		changeTemplate(vm, more)
		m.Step(vm)
		Expect(ExpectExists(vm)).To(HaveVMCondition(v1.VirtualMachineRestartRequired, corev1.ConditionTrue, "", specChanged))
		changeTemplate(vm, func(t *v1.VirtualMachineInstanceTemplateSpec) { t.Spec.Domain.CPU = before })
		m.Step(vm)
		Expect(ExpectExists(vm)).To(haveNoVMCondition(v1.VirtualMachineRestartRequired))
		Expect(generationsOf(vm)).To(Equal("generation 3 desired 3 observed 3 instance 3"))
		m.expectQuiet(vm)
	})

	It("copies changed scheduling constraints to the running VMI, and removes them", func() {
		vm, _ := runs(builder.MakeVM("vm"))
		changeTemplate(vm, func(t *v1.VirtualMachineInstanceTemplateSpec) {
			t.Spec.NodeSelector = map[string]string{"zone": "a"}
			t.Spec.Tolerations = []corev1.Toleration{{Key: "dedicated", Operator: corev1.TolerationOpExists}}
			t.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{}}
			t.ObjectMeta.Annotations = map[string]string{"descheduler.alpha.kubernetes.io/evict": "true"}
		})
		m.Step(vm)
		vmi := InstanceOf(vm)
		Expect(vmi.Spec.NodeSelector).To(Equal(vm.Spec.Template.Spec.NodeSelector))
		Expect(vmi.Spec.Tolerations).To(Equal(vm.Spec.Template.Spec.Tolerations))
		Expect(vmi.Spec.Affinity).To(Equal(vm.Spec.Template.Spec.Affinity))
		Expect(vmi.Annotations).To(HaveKeyWithValue("descheduler.alpha.kubernetes.io/evict", "true"))
		Expect(ExpectExists(vm)).To(haveNoVMCondition(v1.VirtualMachineRestartRequired))
		Expect(generationsOf(vm)).To(Equal("generation 2 desired 2 observed 2 instance 2"))
		m.expectQuiet(vm)

		changeTemplate(vm, func(t *v1.VirtualMachineInstanceTemplateSpec) {
			t.Spec.NodeSelector, t.Spec.Tolerations, t.Spec.Affinity, t.ObjectMeta.Annotations = nil, nil, nil, nil
		})
		m.Step(vm)
		vmi = InstanceOf(vm)
		Expect(vmi.Spec.NodeSelector).To(BeEmpty())
		Expect(vmi.Spec.Tolerations).To(BeEmpty())
		Expect(vmi.Spec.Affinity).To(BeNil())
		Expect(vmi.Annotations).NotTo(HaveKey("descheduler.alpha.kubernetes.io/evict"))
		m.expectQuiet(vm)
	})

	It("applies nothing to the running VMI with rollout strategy Stage", func() {
		config := clusterconfig.Default()
		config.RolloutStrategy = v1.VMRolloutStrategyStage
		m.Config = FixedConfig{Config: config}
		vm, _ := runs(builder.MakeVM("vm"))
		changeTemplate(vm, func(t *v1.VirtualMachineInstanceTemplateSpec) {
			t.Spec.NodeSelector = map[string]string{
				"zone": "a"}
		})
		m.Step(vm)
		Expect(ExpectExists(vm)).To(
			HaveVMCondition(v1.VirtualMachineRestartRequired, corev1.ConditionTrue, "", specChanged+": nodeSelector"))
		Expect(InstanceOf(vm).Spec.NodeSelector).To(BeEmpty())
	})

	It("does not apply changed labels to the running VMI, requires no restart for them, and does not report them as observed", func() {
		vm, _ := runs(builder.MakeVM("vm"))
		changeTemplate(vm, func(t *v1.VirtualMachineInstanceTemplateSpec) {
			t.ObjectMeta.Labels = map[string]string{
				"tier": "web"}
		})
		m.Step(vm)
		Expect(generationsOf(vm)).To(Equal("generation 2 desired 2 observed 1 instance 1"))
		Expect(ExpectExists(vm)).To(haveNoVMCondition(v1.VirtualMachineRestartRequired))
		Expect(InstanceOf(vm).Labels).NotTo(HaveKey("tier"))
		m.events.Take()
		m.expectQuiet(vm)

		By("applying a live-updatable change all the same")
		changeTemplate(vm, func(t *v1.VirtualMachineInstanceTemplateSpec) {
			t.Spec.NodeSelector = map[string]string{
				"zone": "a"}
		})
		m.Step(vm)
		Expect(InstanceOf(vm).Spec.NodeSelector).To(HaveKeyWithValue("zone", "a"))
	})

	It("applies labels and annotations that virt-controller's flags select", func() {
		config := clusterconfig.Default()
		config.LiveMetadata = podspec.LiveMetadata{Annotations: []string{"acme.example/*"},
			Labels: []string{"tier", v1.NodeNameLabel}}
		m.Config = FixedConfig{Config: config}
		vm, _ := runs(builder.MakeVM("vm"))
		changeTemplate(vm, func(t *v1.VirtualMachineInstanceTemplateSpec) {
			t.ObjectMeta.Labels = map[string]string{"tier": "web"}
			t.ObjectMeta.Annotations = map[string]string{"acme.example/zone": "a"}
		})
		m.Step(vm)
		Expect(InstanceOf(vm).Labels).To(HaveKeyWithValue("tier", "web"))
		Expect(InstanceOf(vm).Annotations).To(HaveKeyWithValue("acme.example/zone", "a"))
		Expect(generationsOf(vm)).To(Equal("generation 2 desired 2 observed 2 instance 2"))
		m.events.Take()
		m.expectQuiet(vm)

		By("not applying others, nor those that belong to the VMI")
		changeTemplate(vm, func(t *v1.VirtualMachineInstanceTemplateSpec) {
			t.ObjectMeta.Labels = map[string]string{"other": "x", v1.NodeNameLabel: "elsewhere"}
			t.ObjectMeta.Annotations = nil
		})
		m.Step(vm)
		vmi := InstanceOf(vm)
		Expect(vmi.Labels).NotTo(Or(HaveKey("tier"), HaveKey("other"), HaveKeyWithValue(v1.NodeNameLabel, "elsewhere")))
		Expect(vmi.Annotations).NotTo(HaveKey("acme.example/zone"))
		Expect(generationsOf(vm)).To(Equal("generation 3 desired 3 observed 2 instance 2"))
		m.events.Take()
		m.expectQuiet(vm)
	})

	It("treats equal quantities in different notations as equal", func() {
		vm, _ := runs(builder.MakeVM("vm").Template(builder.MakeVMI("vm").Guest("128Mi")))
		raw := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"template":{"spec":{"domain":{"memory":{"guest":"131072Ki"}}}}}}`))
		Expect(K8sClient.Patch(ctx, vm, raw)).To(Succeed())
		m.Step(vm)
		Expect(ExpectExists(vm)).To(haveNoVMCondition(v1.VirtualMachineRestartRequired))
		Expect(generationsOf(vm)).To(Equal("generation 2 desired 2 observed 2 instance 2"))
		m.events.Take()
		m.expectQuiet(vm)
	})

	It("does not change the scheduling constraints of a migrating VMI", func() {
		vm, vmi := runs(builder.MakeVM("vm"))
		SetVMIStatus(vmi, v1.Running, func(s *v1.VirtualMachineInstanceStatus) {
			s.MigrationState = &v1.VirtualMachineInstanceMigrationState{StartTimestamp: ptr.To(metav1.Now())}
		})
		m.Step(vm)
		Expect(show(vm)).To(Equal(v1.VirtualMachineStatusMigrating))
		changeTemplate(vm, func(t *v1.VirtualMachineInstanceTemplateSpec) {
			t.Spec.NodeSelector = map[string]string{
				"zone": "a"}
		})
		m.Step(vm)
		Expect(InstanceOf(vm).Spec.NodeSelector).To(BeEmpty())
		Expect(ExpectExists(vm)).To(HaveVMCondition(v1.VirtualMachineFailure, corev1.ConditionTrue, "AffinityChangeError",
			"should not be changed during VMI migration"))
		SetVMIStatus(vmi, v1.Running, func(s *v1.VirtualMachineInstanceStatus) { s.MigrationState.Completed = true })
		m.Step(vm)
		Expect(ExpectExists(vm)).To(haveNoVMCondition(v1.VirtualMachineFailure))
		Expect(InstanceOf(vm).Spec.NodeSelector).To(HaveKeyWithValue("zone", "a"))
	})

	It("does not update the VMI's generation before its status has the name of the old revision", func() {
		vm, vmi := m.started(builder.MakeVM("vm"))
		ExpectExists(vm).Spec.RunStrategy = ptr.To(v1.RunStrategyManual)
		Expect(K8sClient.Update(ctx, vm)).To(Succeed())
		m.Step(vm)
		Expect(generationsOf(vm)).To(Equal("generation 2 desired 2 observed 2 instance 1"))
		m.expectQuiet(vm)
		SetVMIStatus(vmi, v1.Running, revised(vmi))
		m.Step(vm)
		Expect(generationsOf(vm)).To(Equal("generation 2 desired 2 observed 2 instance 2"))
		Expect(InstanceOf(vm).Status.VirtualMachineRevisionName).To(HaveSuffix("-1"))
		m.expectQuiet(vm)
	})

	It("records the start in status.runStrategy when the VM becomes RerunOnFailure and the VMI's creation has to be retried", func() {
		vm := m.create(builder.MakeVM("vm").Strategy(v1.RunStrategyHalted))
		m.Step(vm)
		Expect(ExpectExists(vm).Status.RunStrategy).To(BeEmpty(), "it was never started")
		ExpectExists(vm).Spec.RunStrategy = ptr.To(v1.RunStrategyRerunOnFailure)
		Expect(K8sClient.Update(ctx, vm)).To(Succeed())
		m.Writes.Fail = func(request string) error {
			if request == createInstance {
				return apierrors.NewForbidden(v1.GroupVersion.WithResource("vmis").GroupResource(), "vm", errors.New("denied"))
			}
			return nil
		}
		_, err := m.Try(vm)
		Expect(err).To(HaveOccurred())
		m.Writes.Fail = nil
		m.Step(vm)
		Expect(metav1.IsControlledBy(InstanceOf(vm), vm)).To(BeTrue())
		Expect(ExpectExists(vm).Status.RunStrategy).To(Equal(v1.RunStrategyRerunOnFailure))
	})
})
