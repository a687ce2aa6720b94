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

	It("is written once by each step that it takes", func() {
		of := r.Restore()
		r.ExpectBudget(of, patchRestore, patchRestoreStatus)
		r.ExpectBudget(of, patchVMStatus)
		r.ExpectBudget(of, patchRestoreStatus)
		// The VM is checked in a dry run before anything is created for it.
		r.ExpectOrder(of, patchVM, createClaim, createClaim)
		r.Provision()
		r.ExpectBudget(of, createDataVolume, patchRestoreStatus)
		r.Provision()
		// With one write, no client sees a VM with only some of its restored disks.
		r.ExpectBudget(of, patchVM)
		r.ExpectBudget(of, deleteDataVolume)
		r.ExpectBudget(of, patchVMStatus)
		r.ExpectBudget(of, patchRestoreStatus)
		r.ExpectSteady(of)
	})

	It("restores a VM step by step, and writes nothing afterwards", func() {
		of, before := r.Restore(), r.objects()
		By("the finalizer and the owner, then the first status")
		r.Step(of)
		ExpectExists(of)
		Expect(of.Finalizers).To(ConsistOf(snapshot.VirtualMachineRestoreFinalizer))
		Expect(metav1.IsControlledBy(of, r.VM)).To(BeTrue())
		Expect(conditionsOf(of)).To(HaveExactElements(
			"Progressing=True: Initializing VirtualMachineRestore", "Ready=False: Initializing VirtualMachineRestore"))
		Expect(r.LockedBy()).To(BeEmpty())
		By("the lock")
		r.Step(of)
		Expect(r.LockedBy()).To(Equal("back"))
		Expect(ExpectExists(of).Status.Restores).To(BeEmpty())
		By("the names of the claims and of the former DataVolume, before the claims")
		r.Step(of)
		restored := ExpectExists(of).Status.Restores
		Expect(restored).To(HaveLen(2))
		Expect(restored[0].DataVolumeName).To(HaveValue(Equal("restore-" + string(of.UID) + "-root")))
		Expect(restored[0].PersistentVolumeClaimName).To(Equal(*restored[0].DataVolumeName))
		Expect(restored[1].DataVolumeName).To(BeNil())
		Expect(restored[1].PersistentVolumeClaimName).To(Equal("restore-" + string(of.UID) + "-data"))
		Expect(of.Status.DeletedDataVolumes).To(ConsistOf("root-dv"))
		Expect(r.objects()).To(Equal(before))
		By("the check of the VM, then the claims")
		version := ExpectExists(r.VM).ResourceVersion
		r.Step(of)
		Expect(ExpectExists(r.VM).ResourceVersion).To(Equal(version), "the check is a dry run")
		claims := r.Claims()
		Expect(claims).To(HaveLen(4))
		Expect(claims).To(HaveKey(restored[0].PersistentVolumeClaimName))
		Expect(claims).To(HaveKey(restored[1].PersistentVolumeClaimName))
		Expect(conditionsOf(of)).To(HaveExactElements(creatingPVCs, "Ready=False: Waiting for new PVCs"))
		r.expectQuiet(of)
		By("the DataVolume, when the claims are bound")
		made := DataVolume(r.NS, *restored[0].DataVolumeName)
		ExpectGone(made)
		r.Provision()
		r.Step(of)
		Expect(metav1.IsControlledBy(ExpectExists(made), r.VM)).To(BeTrue())
		Expect(conditionsOf(of)).To(
			HaveExactElements("Progressing=True: Updating target spec", "Ready=False: Waiting for target update"))
		Expect(ExpectExists(r.VM).ResourceVersion).To(Equal(version))
		r.expectQuiet(of)
		r.Provision()
		By("the VM")
		r.Step(of)
		volumes := ExpectExists(r.VM).Spec.Template.Spec.Volumes
		Expect(volumes[0].DataVolume.Name).To(Equal(made.Name))
		Expect(volumes[1].PersistentVolumeClaim.ClaimName).To(Equal(restored[1].PersistentVolumeClaimName))
		Expect(r.VM.Spec.DataVolumeTemplates).To(ConsistOf(HaveField("Name", made.Name)))
		Expect(r.objects()).To(ContainElements(before), "also the former DataVolume")
		By("the former DataVolume, the lock, the end")
		r.Step(of)
		ExpectGone(DataVolume(r.NS, "root-dv"))
		Expect(r.LockedBy()).To(Equal("back"))
		r.Step(of)
		Expect(r.LockedBy()).To(BeEmpty())
		Expect(IsRestoreComplete(of)).To(BeFalse())
		Expect(r.events.Take()).To(BeEmpty())
		after := r.objects()
		r.Step(of)
		Expect(r.events.Take()).To(ConsistOf(completed))
		Expect(r.expectQuiet(of).RequeueAfter).To(BeZero())

		Expect(r.LockedBy()).To(BeEmpty())
		Expect(r.objects()).To(Equal(after))
		Expect(slices.DeleteFunc(before, func(object string) bool { return slices.Contains(after, object) })).To(
			ConsistOf(HavePrefix("DataVolume root-dv ")), "nothing else is deleted")
		Expect(IsRestoreComplete(of)).To(BeTrue())
		Expect(of.Status.Restores).To(Equal(restored))
		Expect(of.Status.DeletedDataVolumes).To(ConsistOf("root-dv"))
		Expect(of.Status.RestoreTime).NotTo(BeNil())
		Expect(conditionsOf(of)).To(
			HaveExactElements("Progressing=False: Operation complete", "Ready=True: Operation complete"))
		claim := r.Claims()[restored[1].PersistentVolumeClaimName]
		Expect(metav1.IsControlledBy(claim, r.VM)).To(BeTrue())
		Expect(claim.Spec.Resources.Requests.Storage().String()).
			To(Equal("2Gi"), "the VolumeSnapshot needs more than the claim requested")
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
		Expect(ExpectExists(DataVolume(r.NS, "root-dv")).Annotations).
			To(HaveKeyWithValue("cdi.kubevirt.io/storage.prePopulated", "root-dv"))
		Expect(ExpectExists(r.VM).Spec.Template.Spec.Volumes[1].PersistentVolumeClaim.ClaimName).To(Equal("data-pvc"))
		Expect(r.Writes.TakeOnly(deleteClaim)).To(HaveLen(2), "no restored claim is deleted again")
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
		r.Revision(RevisionOfVM,
			*metav1.NewControllerRef(r.Snapshot, snapshotv1beta1.GroupVersion.WithKind("VirtualMachineSnapshot")))
		of := r.Restore()
		r.until(of, func() bool {
			return slices.Contains(r.events.Take(),
				encountered+"ControllerRevision "+r.NS+"/"+RevisionOfVM+" exists already and belongs to another object")
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
		before := r.objects()
		of := r.Restore(func(spec *snapshotv1beta1.VirtualMachineRestoreSpec) { spec.VirtualMachineSnapshotName = "later" })
		r.Step(of)
		Expect(r.Step(of).RequeueAfter).To(Equal(15 * time.Second))
		missing := "VMSnapshot " + r.NS + "/later does not exist"
		Expect(r.events.Take()).To(ConsistOf(encountered + missing))
		Expect(conditionsOf(of)).To(HaveExactElements("Progressing=False: "+missing, "Ready=False: "+missing))
		Expect(r.expectQuiet(of).RequeueAfter).To(Equal(15 * time.Second))
		Expect(r.LockedBy()).To(BeEmpty())
		Expect(r.objects()).To(Equal(before))
	})

	It("does not restore DataVolumes while there is no importer", func() {
		r.DataVolumes = NoDataVolumes{}
		of, before := r.Restore(), r.objects()
		r.Step(of)
		r.Step(of)
		Expect(r.events.Take()).To(ConsistOf(HavePrefix(encountered + "the cluster has no DataVolumes")))
		r.expectQuiet(of)
		Expect(r.LockedBy()).To(BeEmpty())
		Expect(r.objects()).To(Equal(before))
		r.DataVolumes = DataVolumes{}
		r.finish(of)
	})

	It("does not create a VM again that was deleted with its restore", func() {
		of := r.Restore()
		r.until(of, func() bool { return r.LockedBy() == "back" })
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
		ExpectExists(of).Spec.VolumeRestoreOverrides = []snapshotv1beta1.VolumeRestoreOverride{{VolumeName: "data",
			RestoreName: "mine"}}
		Expect(K8sClient.Update(ctx, of)).To(Succeed())
		before := r.objects()
		for range 3 {
			r.Step(of)
		}
		Expect(r.objects()).To(Equal(before))
		Expect(ExpectExists(of).Finalizers).To(ConsistOf("user/finalizer"))
		Expect(r.LockedBy()).To(BeEmpty())
	})

	It("starts over after a conflict, if the cache does not show the lock yet", func() {
		of := r.Restore()
		stale := ExpectExists(r.VM.DeepCopy())
		r.until(of, func() bool { return r.LockedBy() == "back" })
		r.Writes.Stale = stale
		result, err := r.Try(of)
		Expect(err).NotTo(HaveOccurred(), "a conflict")
		Expect(result).NotTo(BeZero())
		r.Writes.Stale = nil
		r.finish(of)
	})

	It("unlocks the VM without its memory dump", func() {
		ExpectExists(r.VM).Status.MemoryDumpRequest = &v1.VirtualMachineMemoryDumpRequest{ClaimName: "dump",
			Phase: v1.MemoryDumpCompleted}
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
		r.Step(of)
		return of
	}
	// expectRunning expects that nothing has been done to stop the VM.
	expectRunning := func() {
		GinkgoHelper()
		Expect(ExpectExists(r.VM).Spec.RunStrategy).To(HaveValue(Equal(v1.RunStrategyAlways)))
		Expect(r.VM.Status.StateChangeRequests).To(BeEmpty())
		Expect(InstanceOf(r.VM).DeletionTimestamp).To(BeNil())
	}
	halt := func() {
		GinkgoHelper()
		Expect(K8sClient.Delete(ctx, InstanceKey(r.VM))).To(Succeed())
	}

	It("fails at once with FailImmediate, for good", func() {
		of := started(snapshotv1beta1.VirtualMachineRestoreFailImmediate)
		r.Step(of)
		Expect(conditionsOf(of)).To(
			ContainElement("Failure=True: Restore target VMI must be powered off before restore operation"))
		Expect(r.events.Take()).To(ConsistOf(HavePrefix("Warning Operation failed: ")))
		expectRunning()
		halt()
		Expect(r.expectQuiet(of).RequeueAfter).To(BeZero())
		Expect(r.LockedBy()).To(BeEmpty())
	})

	It("waits with WaitEventually, and goes on when the VMI is gone", func() {
		of := started(snapshotv1beta1.VirtualMachineRestoreWaitEventually)
		r.Step(of)
		r.FakeClock.SetTime(r.FakeClock.Now().Add(time.Hour))
		Expect(r.events.Take()).To(ConsistOf(HavePrefix(notReady)))
		Expect(r.expectQuiet(of).RequeueAfter).To(BeZero())
		expectRunning()
		halt()
		r.finish(of)
		Expect(ExpectExists(r.VM).Spec.RunStrategy).To(HaveValue(Equal(v1.RunStrategyAlways)), "the user's choice stays")
	})

	It("finds a VMI that the cache does not show", func() {
		of := started(snapshotv1beta1.VirtualMachineRestoreWaitEventually)
		r.Writes.Blind = func(_ client.ObjectKey, object client.Object) bool {
			_, isVMI := object.(*v1.VirtualMachineInstance)
			return isVMI
		}
		r.Step(of)
		Expect(r.events.Take()).To(ConsistOf(HavePrefix(notReady)))
		Expect(r.LockedBy()).To(BeEmpty())
		expectRunning()
	})

	DescribeTable("stops it with StopTarget", func(
		strategy v1.VirtualMachineRunStrategy, phase v1.VirtualMachineInstancePhase, requested bool,
		after v1.VirtualMachineRunStrategy,
	) {
		vmi := r.running()
		SetVMIStatus(vmi, phase)
		EditVM(r.VM, func(vm *v1.VirtualMachine) { vm.Spec.RunStrategy = &strategy })
		of := r.Restore(readiness(snapshotv1beta1.VirtualMachineRestoreStopTarget))
		r.Step(of)
		r.Step(of)
		Expect(r.events.Take()).To(ConsistOf(notReady + "Automatically stopping restore target for restore operation"))
		r.expectQuiet(of)
		Expect(ExpectExists(r.VM).Spec.RunStrategy).To(HaveValue(Equal(after)))
		var requests []v1.VirtualMachineStateChangeRequest
		if requested {
			stop := v1.VirtualMachineStateChangeRequest{Action: v1.StopRequest, UID: &vmi.UID}
			requests = append(requests, stop.MadeUnder(strategy))
		}
		Expect(r.VM.Status.StateChangeRequests).To(Equal(requests))
		Expect(r.LockedBy()).To(BeEmpty())
		halt()
		r.finish(of)
		Expect(ExpectExists(r.VM).Spec.RunStrategy).To(HaveValue(Equal(after)), "it stays off")
	},
		Entry("Always", v1.RunStrategyAlways, v1.Running, false, v1.RunStrategyHalted),
		Entry("Once", v1.RunStrategyOnce, v1.Succeeded, false, v1.RunStrategyHalted),
		Entry("Manual", v1.RunStrategyManual, v1.Running, true, v1.RunStrategyManual),
		Entry("RerunOnFailure, after a failure", v1.RunStrategyRerunOnFailure, v1.Failed, true, v1.RunStrategyRerunOnFailure),
		Entry("Halted, and stopping already", v1.RunStrategyHalted, v1.Running, false, v1.RunStrategyHalted),
	)
})
