// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package controllersuite

import (
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
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/api/cdi"
	"github.com/vireo-project/vireo/api/csi"
	"github.com/vireo-project/vireo/api/instancetype"
	snapshotv1beta1 "github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/decide/firmware"
	"github.com/vireo-project/vireo/internal/decide/snapshot/capture"
	"github.com/vireo-project/vireo/test/builder"
)

// StateOfVM is the claim with the state of the VM's TPM and EFI.
const StateOfVM = "persistent-state-for-vm-x"

// RevisionOfVM is the ControllerRevision with the VM's instance type.
const RevisionOfVM = "vm-small-1"

// Restorable is a namespace with a VM and a usable snapshot of it.
type Restorable struct {
	// FakeClock is for the reconciler.
	FakeClock *clocktesting.FakePassiveClock
	// NS is the namespace.
	NS string
	// Class is the storage class of the VM's claims.
	Class    *storagev1.StorageClass
	VM       *v1.VirtualMachine
	Snapshot *snapshotv1beta1.VirtualMachineSnapshot
	// Unbound lets claims wait for their first consumer.
	Unbound bool
}

// NewRestorable returns a halted VM with a disk of a DataVolume template, one of a claim, and an instance type, and no
// snapshot.
func NewRestorable(changes ...func(*v1.VirtualMachine)) *Restorable {
	GinkgoHelper()
	return NewRestorableOn(storagev1.VolumeBindingImmediate, changes...)
}

// NewRestorableOn is NewRestorable on storage with a binding mode.
func NewRestorableOn(binding storagev1.VolumeBindingMode, changes ...func(*v1.VirtualMachine)) *Restorable {
	GinkgoHelper()
	InstallVolumeSnapshots()
	r := &Restorable{FakeClock: clocktesting.NewFakePassiveClock(time.Now()), NS: NewNamespace()}
	r.Class = NewStorageClass(binding, func(class *storagev1.StorageClass) { class.Provisioner = r.NS + ".csi.example" })
	b := builder.MakeVM("vm").Namespace(r.NS).Strategy(v1.RunStrategyHalted).Template(builder.MakeVMI("vm").
		Volume("root", v1.VolumeSource{DataVolume: &v1.DataVolumeSource{Name: "root-dv"}}).PVC("data", "data-pvc"))
	b.With(func(vm *v1.VirtualMachine) {
		vm.Spec.DataVolumeTemplates = []v1.DataVolumeTemplateSpec{{ObjectMeta: metav1.ObjectMeta{Name: "root-dv"}}}
		vm.Spec.Instancetype = &v1.InstancetypeMatcher{Name: "small", RevisionName: RevisionOfVM}
	})
	for _, change := range changes {
		b.With(change)
	}
	r.VM = b.Obj()
	ExpectCreated(r.VM)
	r.fill()
	return r
}

// fill creates the disks and the revision of the VM.
func (r *Restorable) fill() {
	GinkgoHelper()
	owner := *metav1.NewControllerRef(r.VM, v1.VirtualMachineGroupVersionKind)
	for i := range r.VM.Spec.DataVolumeTemplates {
		dv := DataVolume(r.NS, r.VM.Spec.DataVolumeTemplates[i].Name)
		dv.OwnerReferences = []metav1.OwnerReference{owner}
		// A running reconciler of VMs may be faster.
		Expect(client.IgnoreAlreadyExists(K8sClient.Create(ctx, dv))).To(Succeed())
		dv = ExpectExists(dv)
		FillDataVolume(dv, cdi.DataVolumeSucceeded)
		r.disk(dv.Name, *metav1.NewControllerRef(dv, cdi.GroupVersion.WithKind("DataVolume")))
	}
	r.disk("data-pvc", owner)
	if r.VM.Spec.Template.Spec.HasPersistentState() {
		state := ExpectExists(r.disk(StateOfVM, owner))
		metav1.SetMetaDataLabel(&state.ObjectMeta, v1.PersistentStateLabel, "vm")
		Expect(K8sClient.Update(ctx, state)).To(Succeed())
	}
	r.Revision(RevisionOfVM, owner)
}

func (r *Restorable) disk(name string, owner metav1.OwnerReference) *corev1.PersistentVolumeClaim {
	GinkgoHelper()
	claim := builder.MakePVC(name).Namespace(r.NS).Bound("1Gi").Obj()
	claim.Spec.StorageClassName, claim.OwnerReferences = ptr.To(r.Class.Name), []metav1.OwnerReference{owner}
	ExpectCreated(claim)
	return claim
}

// Revision creates a revision with an instance type.
func (r *Restorable) Revision(name string, owner metav1.OwnerReference) {
	GinkgoHelper()
	ExpectCreated(&appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: r.NS, Name: name, OwnerReferences: []metav1.OwnerReference{owner}, Labels: map[string]string{
				v1.CreatedByLabel: string(owner.UID), instancetype.ControllerRevisionObjectNameLabel: "small",
			},
		},
		Data: runtime.RawExtension{
			Raw: []byte(`{"apiVersion":"instancetype.kubevirt.io/v1beta1","kind":"VirtualMachineInstancetype"}`),
		},
	})
}

// Take takes a snapshot of the VM, in place of the reconciler of snapshots and the storage driver.
func (r *Restorable) Take() {
	GinkgoHelper()
	r.Request()
	r.Taken(r.Snapshot)
}

// Taken fills a snapshot of the VM.
func (r *Restorable) Taken(of *snapshotv1beta1.VirtualMachineSnapshot) {
	GinkgoHelper()
	storage := capture.Storage{
		Claims: r.Claims(), State: r.Claims()[StateOfVM], Drivers: map[string]string{r.Class.Name: r.Class.Provisioner},
		Classes: []csi.VolumeSnapshotClass{{ObjectMeta: metav1.ObjectMeta{Name: "class"}, Driver: r.Class.Provisioner}},
	}
	stored := capture.Stored{VM: r.VM, Identity: firmware.FromUID, Volumes: capture.Volumes(r.VM, storage)}
	content, copies := capture.Content(of, stored)
	Expect(content.Spec.VolumeBackups).To(HaveLen(len(r.Claims())))
	ExpectCreated(content)
	for i := range content.Spec.VolumeBackups {
		ExpectCreated(capture.VolumeSnapshot(content, &content.Spec.VolumeBackups[i], "class"))
	}
	r.Store()
	for _, names := range copies {
		r.Revision(names.To, *metav1.NewControllerRef(of, snapshotv1beta1.GroupVersion.WithKind("VirtualMachineSnapshot")))
	}
	content.Status = &snapshotv1beta1.VirtualMachineSnapshotContentStatus{ReadyToUse: ptr.To(true)}
	ExpectStatus(content)
	of.Status = &snapshotv1beta1.VirtualMachineSnapshotStatus{
		Phase: snapshotv1beta1.Succeeded, ReadyToUse: ptr.To(true), SourceUID: ptr.To(r.VM.UID),
		VirtualMachineSnapshotContentName: ptr.To(content.Name),
	}
	ExpectStatus(of)
}

// Request creates a snapshot of the VM.
func (r *Restorable) Request() {
	GinkgoHelper()
	r.Snapshot = RequestSnapshot(r.NS, "snap")
}

// Store reports all VolumeSnapshots as stored, as a storage driver does.
func (r *Restorable) Store() {
	GinkgoHelper()
	requested := &csi.VolumeSnapshotList{}
	Expect(K8sClient.List(ctx, requested, client.InNamespace(r.NS))).To(Succeed())
	for i := range requested.Items {
		if taken := &requested.Items[i]; taken.Status == nil {
			taken.Status = &csi.VolumeSnapshotStatus{
				ReadyToUse: ptr.To(true), RestoreSize: ptr.To(resource.MustParse("2Gi")),
				CreationTime: ptr.To(metav1.Now().Rfc3339Copy()),
			}
			Expect(K8sClient.Status().Update(ctx, taken)).To(Succeed())
		}
	}
}

// Restore creates a restore of the snapshot.
func (r *Restorable) Restore(
	changes ...func(*snapshotv1beta1.VirtualMachineRestoreSpec),
) *snapshotv1beta1.VirtualMachineRestore {
	GinkgoHelper()
	of := &snapshotv1beta1.VirtualMachineRestore{ObjectMeta: metav1.ObjectMeta{Namespace: r.NS, Name: "back"}}
	of.Spec.Target = corev1.TypedLocalObjectReference{APIGroup: ptr.To("kubevirt.io"), Kind: "VirtualMachine", Name: "vm"}
	of.Spec.VirtualMachineSnapshotName = "snap"
	for _, change := range changes {
		change(&of.Spec)
	}
	ExpectCreated(of)
	r.FakeClock.SetTime(of.CreationTimestamp.Time)
	return of
}

// Provision does what storage driver, claim protection and importer do.
func (r *Restorable) Provision() {
	GinkgoHelper()
	for _, claim := range r.Claims() {
		if claim.DeletionTimestamp != nil {
			claim.Finalizers = nil
			Expect(client.IgnoreNotFound(K8sClient.Update(ctx, claim))).To(Succeed())
			continue
		}
		filledFor := claim.Annotations["cdi.kubevirt.io/storage.populatedFor"]
		if filledFor != "" && len(claim.OwnerReferences) == 0 {
			dv := DataVolume(r.NS, filledFor)
			if K8sClient.Get(ctx, client.ObjectKeyFromObject(dv), dv) == nil {
				owner := metav1.NewControllerRef(dv, cdi.GroupVersion.WithKind("DataVolume"))
				claim.OwnerReferences = []metav1.OwnerReference{*owner}
				Expect(K8sClient.Update(ctx, claim)).To(Succeed())
				FillDataVolume(dv, cdi.DataVolumeSucceeded)
			}
		}
		if claim.Status.Phase == corev1.ClaimPending && !r.Unbound {
			claim.Status.Phase = corev1.ClaimBound
			ExpectStatus(claim)
		}
	}
}

// Claims returns the claims of the namespace by name.
func (r *Restorable) Claims() map[string]*corev1.PersistentVolumeClaim {
	GinkgoHelper()
	list := &corev1.PersistentVolumeClaimList{}
	Expect(K8sClient.List(ctx, list, client.InNamespace(r.NS))).To(Succeed())
	claims := map[string]*corev1.PersistentVolumeClaim{}
	for i := range list.Items {
		claims[list.Items[i].Name] = &list.Items[i]
	}
	return claims
}

// LockedBy returns the restore that the VM is locked for, or "".
func (r *Restorable) LockedBy() string {
	GinkgoHelper()
	return ptr.Deref(ExpectExists(r.VM).Status.RestoreInProgress, "")
}

// IsRestoreComplete reports whether a restore is complete.
func IsRestoreComplete(of *snapshotv1beta1.VirtualMachineRestore) bool {
	GinkgoHelper()
	status := ExpectExists(of).Status
	return status != nil && ptr.Deref(status.Complete, false)
}
