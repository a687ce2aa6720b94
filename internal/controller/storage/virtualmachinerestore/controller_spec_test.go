// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachinerestore_test

import (
	"slices"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/api/snapshot"
	snapshotv1beta1 "github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/test/builder"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

const (
	completed    = "Normal VirtualMachineRestoreComplete: Successfully completed VirtualMachineRestore back"
	encountered  = "Warning VirtualMachineRestoreError: VirtualMachineRestore encountered error "
	creatingPVCs = "Progressing=True: Creating new PVCs"
)

var _ = Describe("VirtualMachineRestore", func() {
	var r *restores
	BeforeEach(func() { r = newRestores() })

	revision := func(name string) *appsv1.ControllerRevision {
		return &appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Namespace: r.NS, Name: name}}
	}

	It("restores a VM step by step, and writes nothing afterwards", func() {
		of := r.Restore()
		By("the finalizer and the owner, then the first status")
		r.expectReconciled(of, patchRestore, patchRestoreStatus)
		ExpectExists(of)
		Expect(of.Finalizers).To(ConsistOf(snapshot.VirtualMachineRestoreFinalizer))
		Expect(metav1.IsControlledBy(of, r.VM)).To(BeTrue())
		Expect(conditionsOf(of)).To(HaveExactElements(
			"Progressing=True: Initializing VirtualMachineRestore", "Ready=False: Initializing VirtualMachineRestore"))
		By("the lock")
		r.expectReconciled(of, patchVMStatus)
		Expect(r.LockedBy()).To(Equal("back"))
		By("the names of the claims, before the claims")
		r.expectReconciled(of, patchRestoreStatus)
		restored := ExpectExists(of).Status.Restores
		Expect(restored).To(HaveLen(2))
		Expect(restored[1].PersistentVolumeClaimName).To(Equal("restore-" + string(of.UID) + "-data"))
		By("the check of the VM, then the claims")
		r.expectReconciled(of, patchVM, createClaim, createClaim)
		Expect(conditionsOf(of)).To(HaveExactElements(creatingPVCs, "Ready=False: Waiting for new PVCs"))
		r.expectQuiet(of)
		By("the DataVolume, when the claims are bound")
		r.Provision()
		r.expectReconciled(of, createDataVolume, patchRestoreStatus)
		Expect(conditionsOf(of)).To(HaveExactElements("Progressing=True: Updating target spec", "Ready=False: Waiting for target update"))
		r.expectQuiet(of)
		r.Provision()
		By("the VM, in one write")
		r.expectReconciled(of, patchVM)
		By("the former DataVolume, the lock, the end")
		r.expectReconciled(of, deleteDataVolume)
		r.expectReconciled(of, patchVMStatus)
		Expect(r.events.Take()).To(BeEmpty())
		r.expectReconciled(of, patchRestoreStatus)
		Expect(r.events.Take()).To(ConsistOf(completed))
		Expect(r.expectQuiet(of).RequeueAfter).To(BeZero())

		Expect(r.LockedBy()).To(BeEmpty())
		volumes := ExpectExists(r.VM).Spec.Template.Spec.Volumes
		Expect(volumes[0].DataVolume.Name).To(Equal(*ExpectExists(of).Status.Restores[0].DataVolumeName))
		Expect(volumes[1].PersistentVolumeClaim.ClaimName).To(Equal(restored[1].PersistentVolumeClaimName))
		Expect(of.Status.DeletedDataVolumes).To(ConsistOf("root-dv"))
		Expect(of.Status.RestoreTime).NotTo(BeNil())
		Expect(conditionsOf(of)).To(HaveExactElements("Progressing=False: Operation complete", "Ready=True: Operation complete"))
		claim := r.Claims()[restored[1].PersistentVolumeClaimName]
		Expect(metav1.IsControlledBy(claim, r.VM)).To(BeTrue())
		Expect(claim.Spec.Resources.Requests.Storage().String()).To(Equal("2Gi"), "the VolumeSnapshot needs more than the claim requested")
	})

	It("replaces claims in place, and keeps the importer from making others", func() {
		before := r.Claims()
		of := r.Restore(inPlace)
		r.finish(of)
		after := r.Claims()
		Expect(after).To(HaveLen(2))
		for name, claim := range before {
			Expect(after).To(HaveKey(name))
			Expect(after[name].UID).NotTo(Equal(claim.UID))
		}
		Expect(ExpectExists(DataVolume(r.NS, "root-dv")).Annotations).To(HaveKeyWithValue("cdi.kubevirt.io/storage.prePopulated", "root-dv"))
		Expect(ExpectExists(r.VM).Spec.Template.Spec.Volumes[1].PersistentVolumeClaim.ClaimName).To(Equal("data-pvc"))
		Expect(r.writes.TakeOnly(deleteClaim)).To(HaveLen(2))
	})

	It("creates a VM, and makes it the owner of what was created before it", func() {
		of := r.Restore(toNewVM)
		r.finish(of)
		other := ExpectExists(builder.MakeVM("other").Namespace(r.NS).Obj())
		Expect(other.Spec.RunStrategy).To(HaveValue(Equal(v1.RunStrategyHalted)))
		Expect(other.Spec.Instancetype.RevisionName).To(Equal("other-small-1"))
		owned := revision("other-small-1")
		Expect(metav1.IsControlledBy(ExpectExists(owned), other)).To(BeTrue())
		claim := r.Claims()[other.Spec.Template.Spec.Volumes[1].PersistentVolumeClaim.ClaimName]
		Expect(metav1.IsControlledBy(claim, other)).To(BeTrue())
		Expect(metav1.IsControlledBy(ExpectExists(of), other)).To(BeTrue())
		Expect(ExpectExists(r.VM).Status.RestoreInProgress).To(BeNil())
		Expect(r.Claims()).To(HaveLen(4), "the source keeps its claims")
	})

	It("replaces a revision that has changed, and deletes none of another owner", func() {
		Expect(K8sClient.Delete(ctx, revision(RevisionOfVM))).To(Succeed())
		r.Revision(RevisionOfVM, *metav1.NewControllerRef(r.Snapshot, snapshotv1beta1.GroupVersion.WithKind("VirtualMachineSnapshot")))
		of := r.Restore()
		r.until(of, func() bool {
			return slices.Contains(r.events.Take(), encountered+"ControllerRevision "+r.NS+"/"+RevisionOfVM+" exists already and belongs to another object")
		})
		foreign := ExpectExists(revision(RevisionOfVM))
		foreign.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(r.VM, v1.VirtualMachineGroupVersionKind)}
		Expect(K8sClient.Update(ctx, foreign)).To(Succeed())
		Expect(K8sClient.Delete(ctx, foreign)).To(Succeed())
		changed := revision(RevisionOfVM)
		changed.OwnerReferences, changed.Data.Raw = foreign.OwnerReferences, []byte(`{"apiVersion":"instancetype.kubevirt.io/v1beta1","kind":"Other"}`)
		ExpectCreated(changed)
		r.finish(of)
		Expect(string(ExpectExists(revision(RevisionOfVM)).Data.Raw)).To(ContainSubstring("VirtualMachineInstancetype"))
	})

	It("replaces the state of TPM and EFI, and deletes the former one", func() {
		r = newRestores(func(vm *v1.VirtualMachine) {
			vm.Spec.Template.Spec.Domain.Devices.TPM = &v1.TPMDevice{Persistent: ptr.To(true)}
		})
		r.finish(r.Restore())
		var states []string
		for name, claim := range r.Claims() {
			if claim.Labels[v1.PersistentStateLabel] == "vm" {
				states = append(states, name)
			}
		}
		Expect(states).To(ConsistOf(HavePrefix("restore-")))
		Expect(r.Claims()).NotTo(HaveKey(StateOfVM))
	})

	It("reports once what it waits for, and tries again", func() {
		of := r.Restore(func(spec *snapshotv1beta1.VirtualMachineRestoreSpec) { spec.VirtualMachineSnapshotName = "later" })
		r.expectReconciled(of, patchRestore, patchRestoreStatus)
		again := r.expectReconciled(of, patchRestoreStatus)
		Expect(again.RequeueAfter).To(Equal(15 * time.Second))
		missing := "VMSnapshot " + r.NS + "/later does not exist"
		Expect(r.events.Take()).To(ConsistOf(encountered + missing))
		Expect(conditionsOf(of)).To(HaveExactElements("Progressing=False: "+missing, "Ready=False: "+missing))
		Expect(r.expectQuiet(of).RequeueAfter).To(Equal(15 * time.Second))
		Expect(r.LockedBy()).To(BeEmpty())
	})

	It("does not restore DataVolumes while there is no importer", func() {
		r.DataVolumes = NoDataVolumes{}
		of := r.Restore()
		r.expectReconciled(of, patchRestore, patchRestoreStatus)
		r.expectReconciled(of, patchRestoreStatus)
		Expect(r.events.Take()).To(ConsistOf(HavePrefix(encountered + "the cluster has no DataVolumes")))
		r.expectQuiet(of)
		r.DataVolumes = DataVolumes{}
		r.finish(of)
	})

	It("does not create a VM again that was deleted with its restore", func() {
		of := r.Restore()
		r.until(of, func() bool { return r.LockedBy() == "back" })
		r.writes.Take()
		Expect(K8sClient.Delete(ctx, r.VM)).To(Succeed())
		r.expectQuiet(of)
		r.expectQuiet(of)
		ExpectGone(r.VM)
	})

	It("does nothing that is written to its spec once it is being deleted", func() {
		of := r.Restore()
		r.until(of, func() bool { return r.LockedBy() == "back" })
		ExpectExists(of).Finalizers = append(of.Finalizers, "user/finalizer")
		Expect(K8sClient.Update(ctx, of)).To(Succeed())
		Expect(K8sClient.Delete(ctx, of)).To(Succeed())
		ExpectExists(of).Spec.VolumeRestoreOverrides = []snapshotv1beta1.VolumeRestoreOverride{{VolumeName: "data", RestoreName: "mine"}}
		Expect(K8sClient.Update(ctx, of)).To(Succeed())
		r.writes.Take()
		for range 3 {
			_, err := r.reconcile(of)
			Expect(err).NotTo(HaveOccurred())
		}
		Expect(r.writes.Take()).NotTo(ContainElement(Or(HavePrefix("create "), HavePrefix("delete "))))
		ExpectExists(of)
	})

	It("starts over after a conflict, if the cache does not show the lock yet", func() {
		of := r.Restore()
		stale := ExpectExists(r.VM.DeepCopy())
		r.until(of, func() bool { return r.LockedBy() == "back" })
		r.writes.Stale = stale
		result, err := r.reconcile(of)
		Expect(err).NotTo(HaveOccurred(), "a conflict")
		Expect(result).NotTo(BeZero())
		r.writes.Stale = nil
		r.finish(of)
	})

	It("unlocks the VM without its memory dump", func() {
		ExpectExists(r.VM).Status.MemoryDumpRequest = &v1.VirtualMachineMemoryDumpRequest{ClaimName: "dump", Phase: v1.MemoryDumpCompleted}
		Expect(K8sClient.Status().Update(ctx, r.VM)).To(Succeed())
		r.finish(r.Restore())
		Expect(ExpectExists(r.VM).Status.MemoryDumpRequest).To(BeNil())
	})
})

var _ = Describe("VirtualMachineRestore of a VM that runs", func() {
	var r *restores
	BeforeEach(func() {
		r = newRestores(func(vm *v1.VirtualMachine) { vm.Spec.RunStrategy = ptr.To(v1.RunStrategyAlways) })
	})
	const notReady = "Warning RestoreTargetNotReady: "
	// started creates the VMI and a restore, and brings the restore to where it finds the VMI.
	started := func(policy snapshotv1beta1.TargetReadinessPolicy) *snapshotv1beta1.VirtualMachineRestore {
		GinkgoHelper()
		r.running()
		of := r.Restore(readiness(policy))
		r.expectReconciled(of, patchRestore, patchRestoreStatus)
		return of
	}
	halt := func() {
		GinkgoHelper()
		Expect(K8sClient.Delete(ctx, InstanceKey(r.VM))).To(Succeed())
	}

	It("fails at once with FailImmediate, for good", func() {
		of := started(snapshotv1beta1.VirtualMachineRestoreFailImmediate)
		r.expectReconciled(of, patchRestoreStatus)
		Expect(conditionsOf(of)).To(ContainElement("Failure=True: Restore target VMI must be powered off before restore operation"))
		Expect(r.events.Take()).To(ConsistOf(HavePrefix("Warning Operation failed: ")))
		halt()
		Expect(r.expectQuiet(of).RequeueAfter).To(BeZero())
		Expect(r.LockedBy()).To(BeEmpty())
	})

	It("fails after the grace period, with a timer of its own", func() {
		of := started(snapshotv1beta1.VirtualMachineRestoreWaitGracePeriodAndFail)
		Expect(r.expectReconciled(of, patchRestoreStatus).RequeueAfter).To(Equal(5 * time.Minute))
		Expect(r.events.Take()).To(ConsistOf(HavePrefix(notReady)))
		r.FakeClock.SetTime(r.FakeClock.Now().Add(time.Minute))
		Expect(r.expectQuiet(of).RequeueAfter).To(Equal(4 * time.Minute))
		r.FakeClock.SetTime(r.FakeClock.Now().Add(4 * time.Minute))
		r.expectReconciled(of, patchRestoreStatus)
		Expect(conditionsOf(of)).To(ContainElement(HavePrefix("Failure=True: Restore target failed to be ready within 5m0s")))
	})

	It("waits with WaitEventually, and goes on when the VMI is gone", func() {
		of := started(snapshotv1beta1.VirtualMachineRestoreWaitEventually)
		r.expectReconciled(of, patchRestoreStatus)
		r.FakeClock.SetTime(r.FakeClock.Now().Add(time.Hour))
		r.events.Take()
		Expect(r.expectQuiet(of).RequeueAfter).To(BeZero())
		halt()
		r.finish(of)
		Expect(ExpectExists(r.VM).Spec.RunStrategy).To(HaveValue(Equal(v1.RunStrategyAlways)), "the user's choice stays")
	})

	It("finds a VMI that the cache does not show", func() {
		of := started(snapshotv1beta1.VirtualMachineRestoreWaitEventually)
		r.writes.Blind = func(_ client.ObjectKey, object client.Object) bool {
			_, isVMI := object.(*v1.VirtualMachineInstance)
			return isVMI
		}
		r.expectReconciled(of, patchRestoreStatus)
		Expect(r.events.Take()).To(ConsistOf(HavePrefix(notReady)))
		Expect(r.LockedBy()).To(BeEmpty())
	})

	DescribeTable("stops it with StopTarget", func(strategy v1.VirtualMachineRunStrategy, phase v1.VirtualMachineInstancePhase, write string, after v1.VirtualMachineRunStrategy) {
		vmi := r.running()
		SetVMIStatus(vmi, phase)
		EditVM(r.VM, func(vm *v1.VirtualMachine) { vm.Spec.RunStrategy = &strategy })
		of := r.Restore(readiness(snapshotv1beta1.VirtualMachineRestoreStopTarget))
		r.expectReconciled(of, patchRestore, patchRestoreStatus)
		writes := []string{patchRestoreStatus}
		if write != "" {
			writes = append(writes, write)
		}
		r.expectReconciled(of, writes...)
		Expect(r.events.Take()).To(ConsistOf(notReady + "Automatically stopping restore target for restore operation"))
		r.expectQuiet(of)
		Expect(ExpectExists(r.VM).Spec.RunStrategy).To(HaveValue(Equal(after)))
		if write == patchVMStatus {
			Expect(r.VM.Status.StateChangeRequests).To(HaveExactElements(
				v1.VirtualMachineStateChangeRequest{Action: v1.StopRequest, UID: &vmi.UID}.MadeUnder(strategy)))
		}
		halt()
		r.finish(of)
		Expect(ExpectExists(r.VM).Spec.RunStrategy).To(HaveValue(Equal(after)), "it stays off")
	},
		Entry("Always", v1.RunStrategyAlways, v1.Running, patchVM, v1.RunStrategyHalted),
		Entry("Once", v1.RunStrategyOnce, v1.Succeeded, patchVM, v1.RunStrategyHalted),
		Entry("Manual", v1.RunStrategyManual, v1.Running, patchVMStatus, v1.RunStrategyManual),
		Entry("RerunOnFailure, after a failure", v1.RunStrategyRerunOnFailure, v1.Failed, patchVMStatus, v1.RunStrategyRerunOnFailure),
		Entry("Halted, and stopping already", v1.RunStrategyHalted, v1.Running, "", v1.RunStrategyHalted),
	)
})
