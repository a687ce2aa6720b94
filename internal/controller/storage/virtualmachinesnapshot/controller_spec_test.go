// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachinesnapshot_test

import (
	"fmt"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/api/cdi"
	"github.com/vireo-project/vireo/api/csi"
	snapshotv1beta1 "github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/storage/claimusers"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/test/builder"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

const (
	snapshotTakes  = "InProgress; Progressing=True Source locked and operation in progress; Ready=False Not ready"
	snapshotFailed = "Failed; Progressing=False Operation failed; Ready=False Not ready; Failure=True snapshot deadline exceeded"
)

var _ = Describe("VirtualMachineSnapshot of a stopped VM", func() {
	var w *snapshots
	BeforeEach(func() { w = newSnapshots() })

	It("is written once by each step that it takes, and once more by each change of its VolumeSnapshots", func() {
		w.vm()
		of := w.request("snap")
		// The finalizer of the snapshot comes first: with it, a snapshot that is deleted unlocks the VM. The VM is locked
		// before it is stored in the content, so that the stored one is that of which the disks are taken. Of the lock, the
		// VM's status comes first, because it says to which snapshot the finalizer belongs.
		w.ExpectOrder(of, patchSnapshot, patchVMStatus, patchVM, createContent, patchSnapshotStatus)
		w.contents.ExpectBudget(ContentOf(of), createVolumeSnap, patchContentStatus)
		w.ExpectBudget(of, patchSnapshotStatus)
		w.report(of, "root", false)
		w.contents.ExpectBudget(ContentOf(of), patchContentStatus)
		// Of the lock, the VM's status goes last, for the same reason. Whoever waits for the snapshot finds the VM unlocked.
		w.ExpectOrder(of, patchVM, patchVMStatus, patchSnapshotStatus)
		w.report(of, "root", true)
		w.contents.ExpectBudget(ContentOf(of), patchContentStatus)
		w.ExpectBudget(of, patchSnapshotStatus)
		w.ExpectSteady(of)
		w.contents.ExpectSteady(ContentOf(of))
	})

	It("is taken while the VM is locked, becomes ready, and follows its VolumeSnapshots", func() {
		vm := w.vm()
		of := w.request("snap")
		result := w.Step(of)
		Expect(result.RequeueAfter).To(BeNumerically("~", 5*time.Minute, time.Minute), "the deadline")
		Expect(w.events.Take()).To(ConsistOf("Normal SuccessfulVirtualMachineSnapshotContentCreate: " +
			"Successfully created VirtualMachineSnapshotContent " + ContentOf(of).Name))
		Expect(DescribeSnapshot(of)).To(Equal(snapshotTakes))
		Expect(IsLockedForSnapshot(vm)).To(BeTrue())
		content := ExpectExists(ContentOf(of))
		Expect(content.Spec.VolumeBackups).To(HaveLen(1))
		Expect(content.Spec.Source.VirtualMachine.Name).To(Equal("vm"))
		w.ExpectSteady(of)

		w.contents.Step(ContentOf(of))
		Expect(w.events.Take()).To(ConsistOf(HavePrefix("Normal SuccessfulVolumeSnapshotCreate: ")))
		w.contents.ExpectSteady(ContentOf(of))
		made := ExpectExists(VolumeSnapshotOf(of, "root"))
		Expect(made.Spec.VolumeSnapshotClassName).To(HaveValue(Equal(w.ns)))
		Expect(metav1.IsControlledBy(made, ExpectExists(ContentOf(of)))).To(BeTrue())
		w.Step(of)
		Expect(DescribeSnapshot(of)).To(Equal(snapshotTakes))
		Expect(IsLockedForSnapshot(vm)).To(BeTrue())

		w.report(of, "root", false)
		w.contents.Step(ContentOf(of))
		w.Step(of)
		Expect(DescribeSnapshot(of)).To(Equal(SnapshotTaken))
		Expect(of.Status.SnapshotVolumes.IncludedVolumes).To(ConsistOf("root"))
		Expect(IsLockedForSnapshot(vm)).To(BeFalse())
		w.settleBoth(of)

		w.report(of, "root", true)
		w.contents.Step(ContentOf(of))
		w.Step(of)
		Expect(DescribeSnapshot(of)).To(Equal(SnapshotReady))
		w.clock.SetTime(w.clock.Now().Add(time.Hour))
		Expect(w.ExpectSteady(of).RequeueAfter).To(BeZero())
		w.contents.ExpectSteady(ContentOf(of))

		Expect(K8sClient.Delete(ctx, ExpectExists(VolumeSnapshotOf(of, "root")))).To(Succeed())
		w.contents.Step(ContentOf(of))
		w.contents.ExpectSteady(ContentOf(of))
		Expect(w.events.Take()).To(ConsistOf(HavePrefix("Warning VolumeSnapshotMissing: ")))
		w.Step(of)
		Expect(DescribeSnapshot(of)).To(Equal("Succeeded; Progressing=False In error state; Ready=False Not ready"))
	})

	DescribeTable("waits for its VM",
		func(prepare func(vm *v1.VirtualMachine, claim *corev1.PersistentVolumeClaim), reason string) {
			vm := w.vm()
			prepare(vm, ExpectExists(builder.MakePVC("root").Namespace(w.ns).Obj()))
			of := w.request("snap")
			result := w.Step(of)
			Expect(result.RequeueAfter).To(Equal(5 * time.Second))
			Expect(DescribeSnapshot(of)).To(Equal("InProgress; Progressing=False Source not locked " +
				strings.ReplaceAll(reason, "NS", w.ns) + "; Ready=False Not ready"))
			Expect(of.Finalizers).To(HaveLen(1))
			Expect(ExpectExists(vm).Finalizers).To(BeEmpty())
			ExpectGone(ContentOf(of))
			w.ExpectSteady(of)
		},
		Entry("no claim", func(_ *v1.VirtualMachine, claim *corev1.PersistentVolumeClaim) {
			claim.Finalizers = nil
			Expect(K8sClient.Update(ctx, claim)).To(Succeed())
			Expect(K8sClient.Delete(ctx, claim)).To(Succeed())
		}, "source NS/vm volume doesnt exist: root"),
		Entry("claim that the importer fills", func(_ *v1.VirtualMachine, claim *corev1.PersistentVolumeClaim) {
			dv := DataVolume(claim.Namespace, "root")
			ExpectCreated(dv)
			claim.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(dv,
				cdi.GroupVersion.WithKind("DataVolume"))}
			Expect(K8sClient.Update(ctx, claim)).To(Succeed())
		}, "source NS/vm volume not populated: root"),
		Entry("Pod of a user", func(vm *v1.VirtualMachine, _ *corev1.PersistentVolumeClaim) {
			ExpectCreated(PodWithClaim(vm.Namespace, "user", "root"))
		}, "source is offline but 1 pods using PVCs [root]"),
		Entry("another snapshot", func(vm *v1.VirtualMachine, _ *corev1.PersistentVolumeClaim) {
			vm.Status.SnapshotInProgress = ptr.To("other")
			ExpectStatus(vm)
		}, `snapshot "other" in progress`),
		Entry("two classes", func(vm *v1.VirtualMachine, _ *corev1.PersistentVolumeClaim) {
			ExpectCreated(&csi.VolumeSnapshotClass{ObjectMeta: metav1.ObjectMeta{Name: vm.Namespace + "-2"},
				Driver: vm.Namespace + ".csi.example"})
		}, "source NS/vm 2 matching VolumeSnapshotClasses for NS: root"),
	)

	It("finds a launcher Pod in the cache, and lists Pods only when there is none", func() {
		w.vm()
		lists := w.countPodLists()
		launcher := PodWithClaim(w.ns, "launcher", "root")
		launcher.Labels = map[string]string{v1.AppLabel: launcherpod.AppLabelValue}
		ExpectCreated(launcher)
		of := w.request("snap")
		w.Step(of)
		w.ExpectSteady(of)
		Expect(DescribeSnapshot(of)).To(ContainSubstring("source is offline but 1 pods using PVCs [root]"))
		Expect(*lists).To(BeZero())
		launcher.Status.Phase = corev1.PodSucceeded
		Expect(K8sClient.Status().Update(ctx, launcher)).To(Succeed())
		w.lock(of)
		Expect(*lists).To(Equal(1))
	})

	It("lists the Pods of a namespace once in a while for all snapshots that wait", func() {
		w.vm()
		lists := w.countPodLists()
		user := PodWithClaim(w.ns, "user", "root")
		ExpectCreated(user)
		first, second := w.request("first"), w.request("second")
		for range 3 {
			for _, of := range []*vmSnapshot{first, second} {
				w.Step(of)
				Expect(DescribeSnapshot(of)).To(ContainSubstring("source is offline but 1 pods using PVCs [root]"))
			}
		}
		Expect(*lists).To(Equal(1))
		Expect(K8sClient.Delete(ctx, user, client.GracePeriodSeconds(0))).To(Succeed())
		w.ExpectSteady(first)
		Expect(*lists).To(Equal(1))
		w.clock.SetTime(w.clock.Now().Add(claimusers.ResultTTL))
		w.lock(first)
		Expect(*lists).To(Equal(2))
		By("a Pod that is created when none was found")
		w.settleBoth(first)
		w.report(first, "root", true)
		w.settleBoth(first)
		ExpectCreated(PodWithClaim(w.ns, "another", "root"))
		w.clock.SetTime(w.clock.Now().Add(claimusers.MaxProofAge))
		w.ExpectSteady(second)
		Expect(DescribeSnapshot(second)).To(ContainSubstring("source is offline but 1 pods using PVCs [root]"))
		Expect(*lists).To(Equal(3))
	})

	It("waits for a VM that does not exist, and takes a VM that was created again", func() {
		of := w.request("snap")
		w.Step(of)
		Expect(DescribeSnapshot(of)).To(Equal("InProgress; Progressing=False Source does not exist; Ready=False Not ready"))
		vm := w.vm(func(vm *v1.VirtualMachine) { vm.Finalizers = []string{"example.com/keep"} })
		Expect(K8sClient.Delete(ctx, vm)).To(Succeed())
		w.ExpectSteady(of) // A VM that is being deleted cannot be locked.
		vm = ExpectExists(vm)
		vm.Finalizers = nil
		Expect(K8sClient.Update(ctx, vm)).To(Succeed())
		again := builder.MakeVM("vm").Namespace(w.ns).Strategy(v1.RunStrategyHalted).Obj()
		ExpectCreated(again)
		w.lock(of)
		Expect(ExpectExists(of).Status.SourceUID).To(HaveValue(Equal(again.UID)))
	})

	It("stores only the VM if the cluster has no VolumeSnapshots, and says that disks are missing", func() {
		w.VolumeSnapshots, w.contents.VolumeSnapshots = VolumeSnapshots{Absent: true}, VolumeSnapshots{Absent: true}
		w.vm()
		of := w.request("snap")
		w.settleBoth(of)
		Expect(DescribeSnapshot(of)).To(Equal(SnapshotReady + "; PartialSnapshot"))
		Expect(of.Status.SnapshotVolumes.ExcludedVolumes).To(ConsistOf("root"))
	})

	It("reports that VolumeSnapshots have been uninstalled, and goes on when they are there again", func() {
		w.vm()
		of := w.request("snap")
		w.lock(of)
		w.contents.VolumeSnapshots = VolumeSnapshots{Absent: true}
		Expect(w.contents.Step(ContentOf(of)).RequeueAfter).To(Equal(5 * time.Second))
		w.Step(of)
		Expect(DescribeSnapshot(of)).To(Equal("InProgress; Progressing=False In error state; Ready=False Not ready"))
		Expect(of.Status.Error.Message).To(HaveValue(ContainSubstring("install Kubernetes' external-snapshotter")))
		w.contents.VolumeSnapshots = VolumeSnapshots{}
		w.take(of)
		w.Step(of)
		Expect(DescribeSnapshot(of)).To(Equal(snapshotTakes))
	})

	It("fails after its deadline, and unlocks the VM when the content is gone", func() {
		vm := w.vm()
		of := w.request("snap", func(s *vmSnapshot) { s.Spec.FailureDeadline = &metav1.Duration{Duration: time.Minute} })
		w.settleBoth(of)
		w.clock.SetTime(w.clock.Now().Add(2 * time.Minute))
		w.Step(of)
		Expect(DescribeSnapshot(of)).To(Equal(snapshotFailed))
		Expect(IsLockedForSnapshot(vm)).To(BeTrue())
		w.contents.Step(ContentOf(of))
		ExpectGone(ContentOf(of))
		w.Step(of)
		Expect(IsLockedForSnapshot(vm)).To(BeFalse())
		Expect(w.ExpectSteady(of).RequeueAfter).To(BeZero())
		Expect(DescribeSnapshot(of)).To(Equal(snapshotFailed))
	})

	It("does not fail if its content is complete, whatever the cache shows", func() {
		vm := w.vm()
		of := w.request("snap")
		w.settleBoth(of)
		stale := ExpectExists(ContentOf(of)).DeepCopy()
		w.report(of, "root", true)
		w.contents.Step(ContentOf(of))
		w.Writes.Stale = stale
		w.clock.SetTime(w.clock.Now().Add(time.Hour))
		w.Step(of)
		Expect(DescribeSnapshot(of)).To(Equal(SnapshotReady))
		Expect(IsLockedForSnapshot(vm)).To(BeFalse())
		Expect(K8sClient.Get(ctx, client.ObjectKeyFromObject(stale), stale)).To(Succeed())
		Expect(stale.DeletionTimestamp).To(BeNil())
	})

	It("uses no content that belongs to another snapshot, and fails", func() {
		vm := w.vm()
		of := w.request("snap")
		forged := ContentOf(of)
		forged.Spec.VirtualMachineSnapshotName = ptr.To("other")
		ExpectCreated(forged)
		_, err := w.Try(of)
		Expect(err).To(MatchError(ContainSubstring("exists and belongs to another snapshot: delete it")))
		w.contents.Step(forged)
		ExpectGone(VolumeSnapshotOf(of, "root"))
		Expect(IsLockedForSnapshot(vm)).To(BeTrue())
		w.clock.SetTime(w.clock.Now().Add(time.Hour))
		w.settleBoth(of)
		Expect(DescribeSnapshot(of)).To(Equal(snapshotFailed))
		Expect(IsLockedForSnapshot(vm)).To(BeFalse())
		ExpectExists(forged)
	})

	It("requests no VolumeSnapshots for a content with more volumes than any VM", func() {
		w.vm()
		of := w.request("snap")
		forged := ContentOf(of)
		forged.Spec.VirtualMachineSnapshotName = ptr.To("snap")
		forged.Spec.Source.VirtualMachine = &snapshotv1beta1.VirtualMachine{Spec: builder.MakeVM("vm").Obj().Spec}
		for i := range 300 {
			forged.Spec.VolumeBackups = append(forged.Spec.VolumeBackups, snapshotv1beta1.VolumeBackup{
				VolumeName: fmt.Sprint("v", i), VolumeSnapshotName: ptr.To(fmt.Sprint("v", i)),
			})
		}
		ExpectCreated(forged)
		w.contents.Step(ContentOf(of))
		Expect(ExpectExists(forged).Status.Error.Message).
			To(HaveValue(HaveSuffix("has 300 volumes, and a VirtualMachine has at most 257")))
		ExpectGone(&csi.VolumeSnapshot{ObjectMeta: metaOf(w.ns, "v0")})
	})

	It("uses no ControllerRevision that is not its own copy", func() {
		w.vm(func(vm *v1.VirtualMachine) {
			vm.Spec.Instancetype = &v1.InstancetypeMatcher{Name: "small", RevisionName: "vm-small-1"}
		})
		stored := func(name, cpus string) *appsv1.ControllerRevision {
			return &appsv1.ControllerRevision{
				ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name},
				Data: runtime.RawExtension{Raw: []byte(`{"apiVersion":"instancetype.kubevirt.io/v1beta1","kind":"VirtualMachineInstancetype",` +
					`"spec":{"cpu":{"guest":` + cpus + `},"memory":{"guest":"1Gi"}}}`)},
			}
		}
		ExpectCreated(stored("vm-small-1", "1"))
		of := w.request("snap")
		owner := *metav1.NewControllerRef(of, snapshotv1beta1.GroupVersion.WithKind("VirtualMachineSnapshot"))
		foreign, other, same := stored("snap-small-1", "1"), stored("snap-small-1", "2"), stored("snap-small-1", "1")
		other.OwnerReferences, same.OwnerReferences = []metav1.OwnerReference{owner}, []metav1.OwnerReference{owner}
		for _, found := range []*appsv1.ControllerRevision{foreign, other} {
			ExpectCreated(found)
			_, err := w.Try(of)
			Expect(err).To(MatchError(ContainSubstring("exists and is not this snapshot's copy of vm-small-1: delete it")))
			ExpectGone(ContentOf(of))
			Expect(K8sClient.Delete(ctx, found)).To(Succeed())
		}
		ExpectCreated(same)
		w.Step(of)
		ExpectExists(ContentOf(of))
	})

	It("waits for ever with a deadline of 0", func() {
		of := w.request("snap", func(s *vmSnapshot) { s.Spec.FailureDeadline = &metav1.Duration{} })
		w.clock.SetTime(w.clock.Now().Add(24 * time.Hour))
		Expect(w.Step(of).RequeueAfter).To(BeZero())
		Expect(ExpectExists(of).Status.Phase).To(Equal(snapshotv1beta1.InProgress))
	})
})
