// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package controller_test

import (
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/api/cdi"
	"github.com/vireo-project/vireo/api/csi"
	"github.com/vireo-project/vireo/api/instancetype"
	snapshotv1beta1 "github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/virtualmachinerestore"
	"github.com/vireo-project/vireo/internal/firmware"
	"github.com/vireo-project/vireo/internal/snapshot/capture"
	"github.com/vireo-project/vireo/test/builder"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

// Writes of a restore's reconciliation.
const (
	patchRestore       = "patch VirtualMachineRestore"
	patchRestoreStatus = "patch VirtualMachineRestore/status"
	createClaim        = "create PersistentVolumeClaim"
	createDataVolume   = "create DataVolume"
	deleteDataVolume   = "delete DataVolume"
	deleteClaim        = "delete PersistentVolumeClaim"
	patchVM            = "patch VirtualMachine"
	patchVMStatus      = "patch VirtualMachine/status"
)

// stateOfVM is the claim with the state of the VM's TPM and EFI.
const stateOfVM = "persistent-state-for-vm-x"

// revisionOfVM and revisionOfSnapshot are the ControllerRevisions with the VM's instance type.
const revisionOfVM, revisionOfSnapshot = "vm-small-1", "snap-small-1"

// restores is a reconciler of restores on the suite's API server, in a namespace with a VM and a usable snapshot of it.
type restores struct {
	*virtualmachinerestore.Reconciler
	*restorable
	writes *Writes
	events *RecordedEvents
}

// restorable is a namespace with a VM and a usable snapshot of it.
type restorable struct {
	clock    *clocktesting.FakePassiveClock
	ns       string
	class    *storagev1.StorageClass
	vm       *v1.VirtualMachine
	snapshot *snapshotv1beta1.VirtualMachineSnapshot
	// unbound lets claims wait for their first consumer.
	unbound bool
}

// newRestores returns a halted VM with a disk of a DataVolume template, one of a claim, and an instance type, and a snapshot of it.
func newRestores(changes ...func(*v1.VirtualMachine)) *restores {
	GinkgoHelper()
	r := &restores{restorable: newRestorable(changes...), writes: NewWrites(), events: &RecordedEvents{}}
	r.Reconciler = &virtualmachinerestore.Reconciler{
		Client: r.writes, APIReader: AsController, Recorder: r.events, DataVolumes: DataVolumes{},
		VolumeSnapshots: VolumeSnapshots{}, Clock: r.clock,
	}
	r.take()
	return r
}

// newRestorable returns a halted VM with a disk of a DataVolume template, one of a claim, and an instance type, without a snapshot.
func newRestorable(changes ...func(*v1.VirtualMachine)) *restorable {
	GinkgoHelper()
	return newRestorableOn(storagev1.VolumeBindingImmediate, changes...)
}

// newRestorableOn is newRestorable on storage with a binding mode.
func newRestorableOn(binding storagev1.VolumeBindingMode, changes ...func(*v1.VirtualMachine)) *restorable {
	GinkgoHelper()
	InstallVolumeSnapshots()
	r := &restorable{clock: clocktesting.NewFakePassiveClock(time.Now()), ns: NewNamespace()}
	r.class = NewStorageClass(binding, func(class *storagev1.StorageClass) { class.Provisioner = r.ns + ".csi.example" })
	b := builder.MakeVM("vm").Namespace(r.ns).Strategy(v1.RunStrategyHalted).Template(builder.MakeVMI("vm").
		Volume("root", v1.VolumeSource{DataVolume: &v1.DataVolumeSource{Name: "root-dv"}}).PVC("data", "data-pvc"))
	b.With(func(vm *v1.VirtualMachine) {
		vm.Spec.DataVolumeTemplates = []v1.DataVolumeTemplateSpec{{ObjectMeta: metav1.ObjectMeta{Name: "root-dv"}}}
		vm.Spec.Instancetype = &v1.InstancetypeMatcher{Name: "small", RevisionName: revisionOfVM}
	})
	for _, change := range changes {
		b.With(change)
	}
	r.vm = b.Obj()
	ExpectCreated(r.vm)
	r.fill()
	return r
}

// fill creates the disks and the revision of the VM.
func (r *restorable) fill() {
	GinkgoHelper()
	owner := *metav1.NewControllerRef(r.vm, v1.VirtualMachineGroupVersionKind)
	for i := range r.vm.Spec.DataVolumeTemplates {
		dv := DataVolume(r.ns, r.vm.Spec.DataVolumeTemplates[i].Name)
		dv.OwnerReferences = []metav1.OwnerReference{owner}
		// A running reconciler of VMs may be faster.
		Expect(client.IgnoreAlreadyExists(K8sClient.Create(ctx, dv))).To(Succeed())
		dv = ExpectExists(dv)
		FillDataVolume(dv, cdi.DataVolumeSucceeded)
		r.disk(dv.Name, *metav1.NewControllerRef(dv, cdi.GroupVersion.WithKind("DataVolume")))
	}
	r.disk("data-pvc", owner)
	if r.vm.Spec.Template.Spec.HasPersistentState() {
		state := ExpectExists(r.disk(stateOfVM, owner))
		metav1.SetMetaDataLabel(&state.ObjectMeta, v1.PersistentStateLabel, "vm")
		Expect(K8sClient.Update(ctx, state)).To(Succeed())
	}
	r.revision(revisionOfVM, owner)
}

func (r *restorable) disk(name string, owner metav1.OwnerReference) *corev1.PersistentVolumeClaim {
	GinkgoHelper()
	claim := builder.MakePVC(name).Namespace(r.ns).Bound("1Gi").Obj()
	claim.Spec.StorageClassName, claim.OwnerReferences = ptr.To(r.class.Name), []metav1.OwnerReference{owner}
	ExpectCreated(claim)
	return claim
}

func (r *restorable) revision(name string, owner metav1.OwnerReference) {
	GinkgoHelper()
	ExpectCreated(&appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: r.ns, Name: name, OwnerReferences: []metav1.OwnerReference{owner}, Labels: map[string]string{
				v1.CreatedByLabel: string(owner.UID), instancetype.ControllerRevisionObjectNameLabel: "small",
			},
		},
		Data: runtime.RawExtension{Raw: []byte(`{"apiVersion":"instancetype.kubevirt.io/v1beta1","kind":"VirtualMachineInstancetype"}`)},
	})
}

// take takes a snapshot of the VM, in place of the reconciler of snapshots and the storage driver.
func (r *restorable) take() {
	GinkgoHelper()
	r.request()
	r.taken(r.snapshot)
}

// taken fills a snapshot of the VM.
func (r *restorable) taken(of *snapshotv1beta1.VirtualMachineSnapshot) {
	GinkgoHelper()
	storage := capture.Storage{
		Claims: r.claims(), State: r.claims()[stateOfVM], Drivers: map[string]string{r.class.Name: r.class.Provisioner},
		Classes: []csi.VolumeSnapshotClass{{ObjectMeta: metav1.ObjectMeta{Name: "class"}, Driver: r.class.Provisioner}},
	}
	stored := capture.Stored{VM: r.vm, Identity: firmware.FromUID, Volumes: capture.Volumes(r.vm, storage)}
	content, copies := capture.Content(of, stored)
	Expect(content.Spec.VolumeBackups).To(HaveLen(len(r.claims())))
	ExpectCreated(content)
	for i := range content.Spec.VolumeBackups {
		ExpectCreated(capture.VolumeSnapshot(content, &content.Spec.VolumeBackups[i], "class"))
	}
	r.store()
	for _, names := range copies {
		r.revision(names.To, *metav1.NewControllerRef(of, snapshotv1beta1.GroupVersion.WithKind("VirtualMachineSnapshot")))
	}
	content.Status = &snapshotv1beta1.VirtualMachineSnapshotContentStatus{ReadyToUse: ptr.To(true)}
	ExpectStatus(content)
	of.Status = &snapshotv1beta1.VirtualMachineSnapshotStatus{
		Phase: snapshotv1beta1.Succeeded, ReadyToUse: ptr.To(true), SourceUID: ptr.To(r.vm.UID),
		VirtualMachineSnapshotContentName: ptr.To(content.Name),
	}
	ExpectStatus(of)
}

// request creates a snapshot of the VM.
func (r *restorable) request() {
	GinkgoHelper()
	r.snapshot = &snapshotv1beta1.VirtualMachineSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: r.ns, Name: "snap"}}
	r.snapshot.Spec.Source = corev1.TypedLocalObjectReference{APIGroup: ptr.To("kubevirt.io"), Kind: "VirtualMachine", Name: "vm"}
	ExpectCreated(r.snapshot)
}

// store reports all VolumeSnapshots as stored, as a storage driver does.
func (r *restorable) store() {
	GinkgoHelper()
	requested := &csi.VolumeSnapshotList{}
	Expect(K8sClient.List(ctx, requested, client.InNamespace(r.ns))).To(Succeed())
	for i := range requested.Items {
		if taken := &requested.Items[i]; taken.Status == nil {
			taken.Status = &csi.VolumeSnapshotStatus{
				ReadyToUse: ptr.To(true), RestoreSize: ptr.To(resource.MustParse("2Gi")), CreationTime: ptr.To(metav1.Now().Rfc3339Copy()),
			}
			Expect(K8sClient.Status().Update(ctx, taken)).To(Succeed())
		}
	}
}

// restore creates a restore of the snapshot.
func (r *restorable) restore(changes ...func(*snapshotv1beta1.VirtualMachineRestoreSpec)) *snapshotv1beta1.VirtualMachineRestore {
	GinkgoHelper()
	of := &snapshotv1beta1.VirtualMachineRestore{ObjectMeta: metav1.ObjectMeta{Namespace: r.ns, Name: "back"}}
	of.Spec.Target = corev1.TypedLocalObjectReference{APIGroup: ptr.To("kubevirt.io"), Kind: "VirtualMachine", Name: "vm"}
	of.Spec.VirtualMachineSnapshotName = "snap"
	for _, change := range changes {
		change(&of.Spec)
	}
	ExpectCreated(of)
	r.clock.SetTime(of.CreationTimestamp.Time)
	return of
}

func (r *restores) reconcile(of *snapshotv1beta1.VirtualMachineRestore) (ctrl.Result, error) {
	return r.Reconcile(ctx, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(of)})
}

// expectReconciled reconciles once and expects exactly these writes, in any order.
func (r *restores) expectReconciled(of *snapshotv1beta1.VirtualMachineRestore, writes ...string) ctrl.Result {
	GinkgoHelper()
	result, err := r.reconcile(of)
	Expect(err).NotTo(HaveOccurred())
	r.writes.ExpectWritten(writes...)
	return result
}

func (r *restores) expectQuiet(of *snapshotv1beta1.VirtualMachineRestore) ctrl.Result {
	GinkgoHelper()
	result := r.expectReconciled(of)
	Expect(r.events.Take()).To(BeEmpty())
	return result
}

// until reconciles, in a cluster with storage and an importer, until done returns true.
func (r *restores) until(of *snapshotv1beta1.VirtualMachineRestore, done func() bool) {
	GinkgoHelper()
	for range 60 {
		_, err := r.reconcile(of)
		Expect(client.IgnoreNotFound(err)).To(Or(Succeed(), MatchError(ErrInjected)))
		r.provision()
		if done() {
			return
		}
	}
	Fail(fmt.Sprintf("the restore does not get there: %+v", ExpectExists(of).Status))
}

// finish reconciles until the restore is complete.
func (r *restores) finish(of *snapshotv1beta1.VirtualMachineRestore) {
	GinkgoHelper()
	r.until(of, func() bool { return isComplete(of) })
}

func isComplete(of *snapshotv1beta1.VirtualMachineRestore) bool {
	GinkgoHelper()
	status := ExpectExists(of).Status
	return status != nil && ptr.Deref(status.Complete, false)
}

// provision does what storage driver, claim protection and importer do.
func (r *restorable) provision() {
	GinkgoHelper()
	for _, claim := range r.claims() {
		if claim.DeletionTimestamp != nil {
			claim.Finalizers = nil
			Expect(client.IgnoreNotFound(K8sClient.Update(ctx, claim))).To(Succeed())
			continue
		}
		if filledFor := claim.Annotations["cdi.kubevirt.io/storage.populatedFor"]; filledFor != "" && len(claim.OwnerReferences) == 0 {
			dv := DataVolume(r.ns, filledFor)
			if K8sClient.Get(ctx, client.ObjectKeyFromObject(dv), dv) == nil {
				claim.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(dv, cdi.GroupVersion.WithKind("DataVolume"))}
				Expect(K8sClient.Update(ctx, claim)).To(Succeed())
				FillDataVolume(dv, cdi.DataVolumeSucceeded)
			}
		}
		if claim.Status.Phase == corev1.ClaimPending && !r.unbound {
			claim.Status.Phase = corev1.ClaimBound
			ExpectStatus(claim)
		}
	}
}

// claims returns the claims of the namespace by name.
func (r *restorable) claims() map[string]*corev1.PersistentVolumeClaim {
	GinkgoHelper()
	list := &corev1.PersistentVolumeClaimList{}
	Expect(K8sClient.List(ctx, list, client.InNamespace(r.ns))).To(Succeed())
	claims := map[string]*corev1.PersistentVolumeClaim{}
	for i := range list.Items {
		claims[list.Items[i].Name] = &list.Items[i]
	}
	return claims
}

// lockedBy returns the restore that the VM is locked for, or "".
func (r *restorable) lockedBy() string {
	GinkgoHelper()
	return ptr.Deref(ExpectExists(r.vm).Status.RestoreInProgress, "")
}

// running creates the VM's VMI.
func (r *restorable) running() *v1.VirtualMachineInstance {
	GinkgoHelper()
	vmi := builder.MakeVMI("vm").Namespace(r.ns).OwnedBy(r.vm).Obj()
	ExpectCreated(vmi)
	SetVMIStatus(vmi, v1.Running)
	return vmi
}

// conditionsOf formats the conditions of a restore.
func conditionsOf(of *snapshotv1beta1.VirtualMachineRestore) []string {
	GinkgoHelper()
	var out []string
	for _, c := range ExpectExists(of).Status.Conditions {
		out = append(out, fmt.Sprintf("%s=%s: %s", c.Type, c.Status, c.Reason))
	}
	return out
}

func inPlace(spec *snapshotv1beta1.VirtualMachineRestoreSpec) {
	spec.VolumeRestorePolicy = ptr.To(snapshotv1beta1.VolumeRestorePolicyInPlace)
}

func toNewVM(spec *snapshotv1beta1.VirtualMachineRestoreSpec) {
	spec.Target.Name = "other"
}

func readiness(policy snapshotv1beta1.TargetReadinessPolicy) func(*snapshotv1beta1.VirtualMachineRestoreSpec) {
	return func(spec *snapshotv1beta1.VirtualMachineRestoreSpec) { spec.TargetReadinessPolicy = &policy }
}
