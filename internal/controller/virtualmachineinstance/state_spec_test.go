// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstance_test

import (
	"context"
	"errors"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/test/builder"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

var _ = Describe("VirtualMachineInstance with a persistent TPM or EFI", func() {
	var w *world
	BeforeEach(func() { w = newWorld() })

	It("creates one claim that its VM owns, and a Pod that mounts it", func() {
		class := NewStorageClass(storagev1.VolumeBindingWaitForFirstConsumer, AsDefault)
		vm, vmi := w.ofVM()
		w.Step(vmi)
		claim := StateClaimOf(vmi)
		Expect(claim.Name).To(MatchRegexp(`^persistent-state-for-vm-[0-9a-f]{5}$`))
		Expect(claim.Labels).To(HaveKeyWithValue("persistent-state-for", "vm"))
		Expect(metav1.IsControlledBy(claim, vm)).To(BeTrue())
		Expect(claim.Spec.StorageClassName).To(HaveValue(Equal(class.Name)))
		Expect(claim.Spec.AccessModes).To(ConsistOf(corev1.ReadWriteOnce))
		Expect(claim.Spec.VolumeMode).To(HaveValue(Equal(corev1.PersistentVolumeFilesystem)))
		Expect(claim.Spec.Resources.Requests[corev1.ResourceStorage]).To(Equal(resource.MustParse("10Mi")))
		Expect(w.events.Take()).To(ConsistOf(
			HavePrefix("Normal SuccessfulCreate: Created PersistentVolumeClaim "+claim.Name),
			HavePrefix("Normal SuccessfulCreate: Created virtual machine pod")))
		pod := ExpectExists(PodOf(vmi))
		Expect(StateClaimIn(pod)).To(Equal(claim.Name))
		w.expectQuiet(vmi)

		w.assign(vmi, "node-1")
		w.events.Take()
		Expect(ExpectExists(vmi).Status.VolumeStatus).To(ConsistOf(v1.VolumeStatus{
			Name: claim.Name, PersistentVolumeClaimInfo: &v1.PersistentVolumeClaimInfo{
				ClaimName: claim.Name, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			}}))
		w.expectQuiet(vmi)
	})

	It("requests ReadWriteMany if the importer's profile of the storage class has it", func() {
		class := NewStorageClass(storagev1.VolumeBindingWaitForFirstConsumer, AsDefault)
		profile := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "StorageProfile", "metadata": map[string]any{"name": class.Name},
			"status": map[string]any{"claimPropertySets": []any{
				map[string]any{"accessModes": []any{"ReadWriteMany"}, "volumeMode": "Block"},
				map[string]any{"accessModes": []any{"ReadWriteMany"}, "volumeMode": "Filesystem"},
			}},
		}}
		status := profile.DeepCopy()
		Expect(K8sClient.Create(ctx, profile)).To(Succeed())
		status.SetResourceVersion(profile.GetResourceVersion())
		Expect(K8sClient.Status().Update(ctx, status)).To(Succeed())
		_, vmi := w.ofVM()
		w.Step(vmi)
		Expect(StateClaimOf(vmi).Spec.AccessModes).To(ConsistOf(corev1.ReadWriteMany))
	})

	It("uses the same claim at the next start, and another one for a new VM of the name", func() {
		NewStorageClass(storagev1.VolumeBindingWaitForFirstConsumer, AsDefault)
		vm, first := w.ofVM()
		w.Step(first)
		claim := StateClaimOf(first)
		w.removeVMI(first)
		again := w.create(PersistentVMI().OwnedBy(vm))
		w.Step(again)
		Expect(StateClaimIn(ExpectExists(PodOf(again)))).To(Equal(claim.Name))
		Expect(StateClaimOf(again).UID).To(Equal(claim.UID), "it is the only one")

		w.removeVMI(again)
		Expect(K8sClient.Delete(ctx, vm)).To(Succeed())
		_, other := w.ofVM()
		w.Step(other)
		Expect(StateClaimIn(ExpectExists(PodOf(other)))).NotTo(Equal(claim.Name))
	})

	It("owns the claim if it has no VM", func() {
		NewStorageClass(storagev1.VolumeBindingWaitForFirstConsumer, AsDefault)
		vmi := w.create(PersistentVMI())
		w.Step(vmi)
		Expect(metav1.IsControlledBy(StateClaimOf(vmi), vmi)).To(BeTrue())
	})

	It("creates no second claim with a stale cache", func() {
		NewStorageClass(storagev1.VolumeBindingImmediate, AsDefault)
		_, vmi := w.ofVM()
		w.Step(vmi)
		w.Client = blindList{w.Writes}
		w.events.Take()
		w.expectQuiet(vmi)
	})

	It("uses a restored claim, which its VM owns from then on", func() {
		NewStorageClass(storagev1.VolumeBindingWaitForFirstConsumer, AsDefault)
		vm, vmi := w.ofVM()
		restored := w.restoredState("from-a-backup")
		w.Step(vmi)
		Expect(StateClaimIn(ExpectExists(PodOf(vmi)))).To(Equal("from-a-backup"))
		Expect(StateClaimOf(vmi).UID).To(Equal(restored.UID), "it is the only one")
		w.Step(vmi)
		Expect(metav1.IsControlledBy(ExpectExists(restored), vm)).To(BeTrue())
		w.events.Take()
		w.expectQuiet(vmi)

		By("starting another VM of the name")
		w.removeVMI(vmi)
		Expect(K8sClient.Delete(ctx, vm)).To(Succeed())
		_, other := w.ofVM()
		w.Step(other)
		Expect(StateClaimIn(ExpectExists(PodOf(other)))).NotTo(Equal("from-a-backup"))
	})

	It("uses the claim of an early KubeVirt, which has no label, and labels it", func() {
		NewStorageClass(storagev1.VolumeBindingWaitForFirstConsumer, AsDefault)
		_, vmi := w.ofVM()
		early := w.restoredState("persistent-state-for-vm", func(claim *corev1.PersistentVolumeClaim) { claim.Labels = nil })
		w.Step(vmi)
		Expect(StateClaimIn(ExpectExists(PodOf(vmi)))).To(Equal(early.Name))
		Expect(ExpectExists(early).Labels).To(HaveKeyWithValue("persistent-state-for", "vm"))
		w.Step(vmi)
		w.events.Take()
		w.expectQuiet(vmi)
	})

	It("does not use a claim of another owner that has the name of an early KubeVirt", func() {
		NewStorageClass(storagev1.VolumeBindingWaitForFirstConsumer, AsDefault)
		_, vmi := w.ofVM()
		other := w.restoredState("persistent-state-for-vm", func(claim *corev1.PersistentVolumeClaim) {
			claim.Labels = nil
			claim.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "keeper", UID: "keeper",
				Controller: ptr.To(true)}}
		})
		w.Step(vmi)
		Expect(StateClaimIn(ExpectExists(PodOf(vmi)))).NotTo(Equal(other.Name))
		Expect(ExpectExists(other).Labels).To(BeEmpty())
	})

	DescribeTable("uses a claim that somebody else may need, without changing it",
		func(change func(*corev1.PersistentVolumeClaim), without func(*v1.VirtualMachine)) {
			vm, vmi := w.ofVM()
			restored := w.restoredState("state", change)
			w.Step(vmi)
			Expect(StateClaimIn(ExpectExists(PodOf(vmi)))).To(Equal("state"))
			without(vm)
			w.events.Take()
			w.expectQuiet(vmi)
			Expect(ExpectExists(restored).OwnerReferences).To(Equal(restored.OwnerReferences))
		},
		Entry("because another object owns it", func(claim *corev1.PersistentVolumeClaim) {
			claim.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "keeper", UID: "keeper"}}
		}, func(*v1.VirtualMachine) {}),
		Entry("because a restore has left it without an owner", func(claim *corev1.PersistentVolumeClaim) {
			claim.Annotations = map[string]string{"restore.kubevirt.io/name": "restore"}
		}, func(*v1.VirtualMachine) {}),
		Entry("because its VM is gone", func(*corev1.PersistentVolumeClaim) {}, func(vm *v1.VirtualMachine) {
			Expect(K8sClient.Delete(ctx, vm)).To(Succeed())
		}),
		Entry("because its VM is another one of the name", func(*corev1.PersistentVolumeClaim) {},
			func(vm *v1.VirtualMachine) {
				Expect(K8sClient.Delete(ctx, vm)).To(Succeed())
				ExpectCreated(builder.MakeVM("vm").Namespace(w.ns).Template(PersistentVMI()).Obj())
			}),
	)

	It("uses a restored claim without changing it if it has no VM", func() {
		vmi := w.create(PersistentVMI())
		restored := w.restoredState("state")
		w.Step(vmi)
		w.events.Take()
		w.expectQuiet(vmi)
		Expect(ExpectExists(restored).OwnerReferences).To(BeEmpty())
	})

	It("does not choose one of several restored claims", func() {
		_, vmi := w.ofVM()
		first := w.restoredState("a-backup")
		w.restoredState("b-backup")
		const message = "both have the persistent state of this VM: delete the one that you do not need"
		_, err := w.Try(vmi)
		Expect(err).To(MatchError(And(ContainSubstring("a-backup (created "), ContainSubstring("b-backup (created "),
			ContainSubstring(message))))
		Expect(ExpectExists(vmi)).To(HaveCondition(v1.VirtualMachineInstanceSynchronized, corev1.ConditionFalse,
			"FailedBackendStorageCreate", message))
		ExpectGone(PodOf(vmi))

		Expect(K8sClient.Delete(ctx, first)).To(Succeed())
		w.Step(vmi)
		Expect(StateClaimIn(ExpectExists(PodOf(vmi)))).To(Equal("b-backup"))
	})

	It("prefers its VM's own claim to a restored one, with a warning", func() {
		NewStorageClass(storagev1.VolumeBindingWaitForFirstConsumer, AsDefault)
		vm, vmi := w.ofVM()
		w.Step(vmi)
		own := StateClaimOf(vmi)
		w.removeVMI(vmi)
		restored := w.restoredState("a-backup")
		vmi = w.create(PersistentVMI().OwnedBy(vm))
		w.Step(vmi)
		Expect(StateClaimIn(ExpectExists(PodOf(vmi)))).To(Equal(own.Name))
		Expect(w.events.Take()).To(
			ContainElement(And(HavePrefix("Warning BackendStorageUnused: PersistentVolumeClaim a-backup (created "),
				ContainSubstring("because the VM has "+own.Name))))
		w.expectQuiet(vmi)
		Expect(ExpectExists(restored).OwnerReferences).To(BeEmpty())
	})

	It("waits until a claim with immediate binding is bound, with the reason", func() {
		NewStorageClass(storagev1.VolumeBindingImmediate, AsDefault)
		_, vmi := w.ofVM()
		w.Step(vmi)
		claim := StateClaimOf(vmi)
		Expect(ExpectExists(vmi)).To(HaveCondition(v1.VirtualMachineInstanceSynchronized, corev1.ConditionFalse,
			"BackendStorageNotReady", "PersistentVolumeClaim "+w.ns+"/"+claim.Name))
		Expect(w.events.Take()).To(ContainElement(HavePrefix("Warning BackendStorageNotReady: ")))
		w.expectQuiet(vmi)
		ExpectGone(PodOf(vmi))
		Expect(w.UsersOfClaim(ctx, claim)).To(ConsistOf(ctrl.Request{NamespacedName: client.ObjectKeyFromObject(vmi)}))

		claim.Status.Phase = corev1.ClaimLost
		ExpectStatus(claim)
		w.Step(vmi)
		Expect(ExpectExists(vmi)).To(HaveCondition(v1.VirtualMachineInstanceSynchronized, corev1.ConditionFalse,
			"BackendStorageNotReady", "has lost its PersistentVolume"))

		claim.Status.Phase = corev1.ClaimBound
		ExpectStatus(claim)
		w.Step(vmi)
		ExpectExists(PodOf(vmi))
		Expect(ExpectExists(vmi)).To(HaveNoCondition(v1.VirtualMachineInstanceSynchronized))
	})

	It("waits for a storage class, and uses the configured one", func() {
		_, vmi := w.ofVM()
		result := w.Step(vmi)
		Expect(result).NotTo(BeZero())
		Expect(ExpectExists(vmi)).To(HaveCondition(v1.VirtualMachineInstanceSynchronized, corev1.ConditionFalse,
			"FailedBackendStorageCreate", "no default StorageClass"))
		w.events.Take()
		w.expectQuiet(vmi)

		config := w.Config.Current()
		config.VMStateStorageClass = "configured-" + w.ns
		w.Config = FixedConfig{Config: config}
		NewStorageClass(storagev1.VolumeBindingWaitForFirstConsumer, AsDefault)
		w.Step(vmi)
		Expect(ExpectExists(vmi)).To(HaveCondition(v1.VirtualMachineInstanceSynchronized, corev1.ConditionFalse,
			"FailedBackendStorageCreate", "no StorageClass configured-"+w.ns))
		ExpectGone(PodOf(vmi))

		NewStorageClass(storagev1.VolumeBindingWaitForFirstConsumer,
			func(c *storagev1.StorageClass) { c.Name = "configured-" + w.ns })
		w.Step(vmi)
		Expect(StateClaimOf(vmi).Spec.StorageClassName).To(HaveValue(Equal("configured-" + w.ns)))
		ExpectExists(PodOf(vmi))
	})

	It("requeues while the storage class of its claim is missing", func() {
		class := NewStorageClass(storagev1.VolumeBindingImmediate, AsDefault)
		_, vmi := w.ofVM()
		w.Step(vmi)
		Expect(K8sClient.Delete(ctx, class)).To(Succeed())
		result := w.Step(vmi)
		Expect(result.RequeueAfter).To(BeNumerically(">", 0), "storage classes are not watched")
		Expect(ExpectExists(vmi)).To(HaveCondition(v1.VirtualMachineInstanceSynchronized, corev1.ConditionFalse,
			"BackendStorageNotReady", "there is no StorageClass "+class.Name))
	})

	It("prefers the default class for VMs", func() {
		NewStorageClass(storagev1.VolumeBindingWaitForFirstConsumer, AsDefault)
		chosen := NewStorageClass(storagev1.VolumeBindingWaitForFirstConsumer, func(c *storagev1.StorageClass) {
			c.Annotations = map[string]string{"storageclass.kubevirt.io/is-default-virt-class": "true"}
		})
		_, vmi := w.ofVM()
		w.Step(vmi)
		Expect(StateClaimOf(vmi).Spec.StorageClassName).To(HaveValue(Equal(chosen.Name)))
	})

	DescribeTable("reports why the claim cannot be created, and retries", func(refusal error, message string) {
		NewStorageClass(storagev1.VolumeBindingWaitForFirstConsumer, AsDefault)
		_, vmi := w.ofVM()
		w.Writes.Fail = func(request string) error {
			if strings.HasPrefix(request, "create PersistentVolumeClaim") {
				return refusal
			}
			return nil
		}
		_, err := w.Try(vmi)
		Expect(err).To(MatchError(ContainSubstring(message)), "an error, so that it is retried")
		Expect(err).NotTo(MatchError(reconcile.TerminalError(nil)))
		Expect(ExpectExists(vmi)).To(HaveCondition(v1.VirtualMachineInstanceSynchronized, corev1.ConditionFalse,
			"FailedBackendStorageCreate", message))
		Expect(w.events.Take()).To(ConsistOf(HavePrefix("Warning FailedBackendStorageCreate: ")))
		ExpectGone(PodOf(vmi))

		w.Writes.Fail = nil
		w.Step(vmi)
		Expect(StateClaimIn(ExpectExists(PodOf(vmi)))).To(Equal(StateClaimOf(vmi).Name))
		Expect(ExpectExists(vmi)).To(HaveNoCondition(v1.VirtualMachineInstanceSynchronized))
	},
		Entry("because of a quota", apierrors.NewForbidden(corev1.Resource("persistentvolumeclaims"), "x",
			errors.New("exceeded quota: compute, requested: persistentvolumeclaims=1")), "exceeded quota"),
		Entry("because it is invalid",
			apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaim").GroupKind(), "x",
				field.ErrorList{field.Forbidden(field.NewPath("spec"), "a webhook")}), "a webhook"),
	)

	It("is for VMs with names that are longer than a label", func() {
		NewStorageClass(storagev1.VolumeBindingWaitForFirstConsumer, AsDefault)
		name := strings.Repeat("long-", 20) + "name"
		vm := builder.MakeVM(name).Namespace(w.ns).Template(PersistentVMI()).Obj()
		ExpectCreated(vm)
		named := func() *builder.VMI {
			return PersistentVMI().With(func(vmi *v1.VirtualMachineInstance) { vmi.Name = name }).OwnedBy(ExpectExists(vm))
		}
		vmi := w.create(named())
		w.Step(vmi)
		claims := &corev1.PersistentVolumeClaimList{}
		Expect(K8sClient.List(ctx, claims, client.InNamespace(w.ns))).To(Succeed())
		Expect(claims.Items).To(HaveLen(1))
		Expect(StateClaimIn(ExpectExists(PodOf(vmi)))).To(Equal(claims.Items[0].Name))
		Expect(w.UsersOfClaim(ctx, &claims.Items[0])).To(
			ConsistOf(ctrl.Request{NamespacedName: client.ObjectKeyFromObject(vmi)}))

		w.removeVMI(vmi)
		vmi = w.create(named())
		w.Step(vmi)
		Expect(StateClaimIn(ExpectExists(PodOf(vmi)))).To(Equal(claims.Items[0].Name), "the next start finds the claim")
	})

	It("creates no claim for a VMI that cannot start, or without persistent state", func() {
		NewStorageClass(storagev1.VolumeBindingWaitForFirstConsumer, AsDefault)
		waiting := w.create(PersistentVMI().PVC("root", "missing"))
		w.Step(waiting)
		ExpectGone(PodOf(waiting))
		other := w.create(builder.MakeVMI("other").EFI().With(func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.Domain.Devices.TPM = &v1.TPMDevice{Persistent: ptr.To(true), Enabled: ptr.To(false)}
		}))
		w.Step(other)
		ExpectExists(PodOf(other))
		claims := &corev1.PersistentVolumeClaimList{}
		Expect(K8sClient.List(ctx, claims, client.InNamespace(w.ns))).To(Succeed())
		Expect(claims.Items).To(BeEmpty())
	})
})

// blindList lists no claims, as a stale cache does.
type blindList struct{ client.Client }

func (b blindList) List(c context.Context, list client.ObjectList, options ...client.ListOption) error {
	if _, claims := list.(*corev1.PersistentVolumeClaimList); claims {
		return nil
	}
	return b.Client.List(c, list, options...)
}

// ofVM creates a VM and the VMI that its reconciler would create.
func (w *world) ofVM() (*v1.VirtualMachine, *v1.VirtualMachineInstance) {
	GinkgoHelper()
	vm := builder.MakeVM("vm").Namespace(w.ns).Template(PersistentVMI()).Obj()
	ExpectCreated(vm)
	vm = ExpectExists(vm)
	return vm, w.create(PersistentVMI().OwnedBy(vm))
}

// restoredState creates a claim with the label of the VM's state and without an owner, as a backup tool does.
func (w *world) restoredState(
	name string, changes ...func(*corev1.PersistentVolumeClaim),
) *corev1.PersistentVolumeClaim {
	GinkgoHelper()
	claim := builder.MakePVC(name).Namespace(w.ns).Bound("10Mi").Obj()
	claim.Labels = map[string]string{"persistent-state-for": "vm"}
	for _, change := range changes {
		change(claim)
	}
	ExpectCreated(claim)
	return claim
}

// removeVMI removes a VMI and its Pod, as a stop does.
func (w *world) removeVMI(vmi *v1.VirtualMachineInstance) {
	GinkgoHelper()
	Expect(K8sClient.Delete(ctx, PodOf(vmi), client.GracePeriodSeconds(0))).To(Succeed())
	vmi = ExpectExists(vmi)
	vmi.Finalizers = nil
	Expect(K8sClient.Update(ctx, vmi)).To(Succeed())
	Expect(K8sClient.Delete(ctx, vmi)).To(Succeed())
	ExpectGone(vmi)
	w.events.Take()
}
