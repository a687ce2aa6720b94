// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachinebackup_test

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1alpha1 "github.com/vireo-project/vireo/api/backup/v1alpha1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/storage/virtualmachinebackup"
	"github.com/vireo-project/vireo/internal/decide/backup"
	"github.com/vireo-project/vireo/internal/decide/backup/plan"
	"github.com/vireo-project/vireo/test/builder"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

var _ = Describe("A VirtualMachineBackup", func() {
	var (
		ns     string
		r      *virtualmachinebackup.Reconciler
		events *RecordedEvents
		vmi    *v1.VirtualMachineInstance
		of     *backupv1alpha1.VirtualMachineBackup
	)

	// reconcile reconciles until nothing changes any more.
	reconcile := func() {
		GinkgoHelper()
		last := ""
		for range 20 {
			_, err := Reconcile(r, of)
			Expect(err).NotTo(HaveOccurred())
			now := versionOf(of) + "/" + versionOf(vmi)
			if now == last {
				return
			}
			last = now
		}
		Fail("the backup does not settle")
	}
	// guest changes the VMI's status, as the agent and the reconciler of VMIs do.
	guest := func(change func(*v1.VirtualMachineInstanceStatus)) {
		GinkgoHelper()
		before := client.MergeFrom(ExpectExists(vmi).DeepCopy())
		change(&vmi.Status)
		Expect(K8sClient.Status().Patch(ctx, vmi, before)).To(Succeed())
		reconcile()
	}
	record := func(stage backup.Stage, problem string) {
		GinkgoHelper()
		guest(func(s *v1.VirtualMachineInstanceStatus) {
			s.DiskBackupRecord = backup.Record{ID: string(of.UID), Stage: stage, StartedAt: time.Now(),
				Problem: problem}.Status()
		})
	}
	mounted := func(mounted bool) {
		GinkgoHelper()
		guest(func(s *v1.VirtualMachineInstanceStatus) {
			s.VolumeStatus = s.VolumeStatus[:1]
			if mounted {
				s.VolumeStatus = append(s.VolumeStatus, v1.VolumeStatus{Name: plan.VolumeName(of), Phase: v1.HotplugVolumeMounted})
			}
		})
	}
	conditionOf := func(kind backupv1alpha1.ConditionType) *metav1.Condition {
		GinkgoHelper()
		Expect(ExpectExists(of).Status).NotTo(BeNil())
		return meta.FindStatusCondition(of.Status.Conditions, string(kind))
	}

	BeforeEach(func() {
		ns, events = NewNamespace(), &RecordedEvents{}
		r = &virtualmachinebackup.Reconciler{
			Client: NewWrites(), APIReader: AsController, Recorder: events, Clock: clocktesting.NewFakePassiveClock(time.Now()),
		}
		vm := builder.MakeVM("vm").Namespace(ns).Template(builder.MakeVMI("vm").PVC("root", "root")).Obj()
		ExpectCreated(vm, builder.MakePVC("backups").Namespace(ns).Bound("1Gi").Obj())
		vmi = builder.MakeVMI("vm").Namespace(ns).PVC("root", "root").OwnedBy(ExpectExists(vm)).Obj()
		ExpectCreated(vmi)
		SetVMIStatus(vmi, v1.Running, func(s *v1.VirtualMachineInstanceStatus) {
			s.VolumeStatus = []v1.VolumeStatus{{Name: "root", Target: "vda"}}
		})
		of = &backupv1alpha1.VirtualMachineBackup{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "b"}}
		of.Spec.Source = corev1.TypedLocalObjectReference{APIGroup: ptr.To("kubevirt.io"), Kind: "VirtualMachine", Name: "vm"}
		of.Spec.PvcName = ptr.To("backups")
		Expect(K8sClient.Create(ctx, of)).To(Succeed())
	})

	It("copies the disks to the claim, and leaves nothing in the VMI", func() {
		reconcile()
		Expect(ExpectExists(vmi).Spec.UtilityVolumes).To(ConsistOf(And(
			HaveField("Name", plan.VolumeName(of)), HaveField("ClaimName", "backups"),
			HaveField("Type", HaveValue(Equal(v1.Backup))))))
		mounted(true)
		Expect(ExpectExists(vmi).Status.DiskBackup).To(And(
			HaveField("ID", string(of.UID)), HaveField("Volumes", ConsistOf("root")),
			HaveField("Directory", HavePrefix("vm/b-"))))
		record(backup.Running, "")
		Expect(conditionOf(backupv1alpha1.ConditionProgressing).Reason).To(Equal(backupv1alpha1.ReasonInitiated))
		record(backup.Succeeded, "")
		Expect(ExpectExists(vmi).Spec.UtilityVolumes).To(BeEmpty())
		Expect(conditionOf(backupv1alpha1.ConditionComplete)).To(BeNil(), "its claim is not detached yet")
		mounted(false)
		Expect(conditionOf(backupv1alpha1.ConditionComplete).Status).To(Equal(metav1.ConditionTrue))
		Expect(of.Status.Type).To(Equal(backupv1alpha1.Full))
		Expect(of.Status.IncludedVolumes).To(
			ConsistOf(backupv1alpha1.BackupVolumeInfo{VolumeName: "root", DiskTarget: "vda"}))
		Expect(of.Finalizers).To(BeEmpty())
		Expect(ExpectExists(vmi).Status.DiskBackup).To(BeNil())
		Expect(events.Take()).To(
			ConsistOf(HavePrefix("Normal VirtualMachineBackupInitiated"),
				HavePrefix("Normal VirtualMachineBackupCompletedSuccessfully")))
		By("doing nothing more")
		before := versionOf(of)
		reconcile()
		Expect(versionOf(of)).To(Equal(before))
	})

	It("continues the backups of its tracker", func() {
		tracker := TrackerOf(builder.MakeVM("vm").Namespace(ns).Obj())
		Expect(K8sClient.Create(ctx, tracker)).To(Succeed())
		reconcile()
		Expect(K8sClient.Delete(ctx, of)).To(Succeed())
		reconcile()
		guest(func(s *v1.VirtualMachineInstanceStatus) { s.TrackedVolumes = []string{"root"} })
		other := &backupv1alpha1.VirtualMachineBackupTracker{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "other"}}
		other.Spec = tracker.Spec
		Expect(K8sClient.Create(ctx, other)).To(Succeed())
		r.Client.(*Writes).StaleList = &backupv1alpha1.VirtualMachineBackupTrackerList{
			Items: []backupv1alpha1.VirtualMachineBackupTracker{*other}}
		before := client.MergeFrom(other.DeepCopy())
		other.Status = &backupv1alpha1.VirtualMachineBackupTrackerStatus{
			LatestCheckpoint: &backupv1alpha1.BackupCheckpoint{Name: "of-other"}}
		Expect(K8sClient.Status().Patch(ctx, other, before)).To(Succeed())
		since := ""
		for _, name := range []string{"first", "second"} {
			of = &backupv1alpha1.VirtualMachineBackup{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}}
			of.Spec.Source = corev1.TypedLocalObjectReference{APIGroup: ptr.To("backup.kubevirt.io"),
				Kind: "VirtualMachineBackupTracker", Name: "t"}
			of.Spec.PvcName = ptr.To("backups")
			Expect(K8sClient.Create(ctx, of)).To(Succeed())
			reconcile()
			mounted(true)
			intent := backup.IntentOf(&ExpectExists(vmi).Status)
			Expect(intent.Checkpoint).To(HavePrefix(name + "-"))
			Expect(intent.Since).To(Equal(since))
			Expect(intent.Kept).To(ContainElement("of-other"), "the cache does not have it yet")
			guest(func(s *v1.VirtualMachineInstanceStatus) {
				s.DiskBackupRecord = backup.Record{
					ID: intent.ID, Stage: backup.Succeeded, StartedAt: time.Now(), Checkpoint: intent.Checkpoint, Since: since,
				}.Status()
			})
			Expect(ExpectExists(tracker).Status).To(Or(BeNil(), HaveField("LatestCheckpoint.Name", since)),
				"its claim is not detached yet")
			mounted(false)
			Expect(conditionOf(backupv1alpha1.ConditionComplete).Status).To(Equal(metav1.ConditionTrue))
			Expect(of.Status.CheckpointName).To(HaveValue(Equal(intent.Checkpoint)))
			Expect(ExpectExists(tracker).Status.LatestCheckpoint).To(And(HaveField("Name", intent.Checkpoint),
				HaveField("Volumes", ConsistOf(backupv1alpha1.BackupVolumeInfo{VolumeName: "root", DiskTarget: "vda"}))))
			since = intent.Checkpoint
		}
		Expect(of.Status.Type).To(Equal(backupv1alpha1.Incremental))
	})

	It("is aborted when it is deleted, and goes when QEMU does not write any more", func() {
		reconcile()
		mounted(true)
		record(backup.Running, "")
		Expect(K8sClient.Delete(ctx, of)).To(Succeed())
		reconcile()
		Expect(ExpectExists(vmi).Status.DiskBackup.Canceled).To(BeTrue())
		Expect(vmi.Spec.UtilityVolumes).NotTo(BeEmpty())
		record(backup.Failed, "aborted")
		Expect(ExpectExists(vmi).Spec.UtilityVolumes).To(BeEmpty())
		ExpectExists(of)
		mounted(false)
		ExpectGone(of)
		Expect(ExpectExists(vmi).Status.DiskBackup).To(BeNil())
	})

	Context("that is removed by force", func() {
		// cleanUp reconciles the VMI until nothing changes any more.
		cleanUp := func() {
			GinkgoHelper()
			for last := ""; last != versionOf(vmi); {
				last = versionOf(vmi)
				_, err := Reconcile(virtualmachinebackup.Abandoned{Reconciler: r}, vmi)
				Expect(err).NotTo(HaveOccurred())
			}
			ExpectExists(vmi)
		}
		attaching := func() { reconcile() }
		attached := func() {
			reconcile()
			guest(func(s *v1.VirtualMachineInstanceStatus) {
				s.VolumeStatus = append(s.VolumeStatus, v1.VolumeStatus{Name: plan.VolumeName(of), Phase: v1.HotplugVolumeMounted})
			})
		}
		freezing := func() {
			guest(func(s *v1.VirtualMachineInstanceStatus) {
				s.Conditions = append(s.Conditions, v1.VirtualMachineInstanceCondition{
					Type: v1.VirtualMachineInstanceAgentConnected, Status: corev1.ConditionTrue,
				})
			})
			attached()
			Expect(ExpectExists(vmi).Status.SnapshotFreeze).
				To(And(HaveField("ID", string(of.UID)), HaveField("End", v1.SnapshotFreezeOpen)))
		}
		at := func(stage backup.Stage) func() {
			return func() {
				attached()
				record(stage, "")
			}
		}
		pulled := func(stage backup.Stage) func() {
			return func() {
				Expect(K8sClient.Delete(ctx, of)).To(Succeed())
				of = &backupv1alpha1.VirtualMachineBackup{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "pulled"},
					Spec: of.Spec}
				of.Spec.Mode, of.Spec.TokenSecretRef = ptr.To(backupv1alpha1.PullMode), "token"
				Expect(K8sClient.Create(ctx, of)).To(Succeed())
				r.Pods = ExporterPods{Reader: K8sClient}
				attached()
				guest(func(s *v1.VirtualMachineInstanceStatus) {
					s.DiskBackupRecord = backup.Record{ID: string(of.UID), Stage: stage, StartedAt: time.Now(), Pull: true}.Status()
				})
			}
		}
		DescribeTable("is aborted, and leaves nothing in the VMI", func(prepare func(), running bool) {
			prepare()
			ExpectExists(of).Finalizers = nil
			Expect(K8sClient.Update(ctx, of)).To(Succeed())
			Expect(client.IgnoreNotFound(K8sClient.Delete(ctx, of))).To(Succeed())
			ExpectGone(of)
			reconcile()
			Expect(plan.Holders(ExpectExists(vmi))).To(ConsistOf(string(of.UID)))
			cleanUp()
			if running {
				Expect(vmi.Status.DiskBackup.Canceled).To(BeTrue())
				Expect(vmi.Spec.UtilityVolumes).NotTo(BeEmpty(), "QEMU may still write to it")
				record(backup.Failed, "aborted")
				cleanUp()
			}
			Expect(vmi.Spec.UtilityVolumes).To(BeEmpty())
			Expect(vmi.Status.SnapshotFreeze).To(Or(BeNil(), HaveField("End", v1.SnapshotFreezeCancel)))
			mounted(false)
			cleanUp()
			Expect(plan.Holders(vmi)).To(BeEmpty())
			Expect(backup.InProgress(&vmi.Status)).To(BeFalse())
			By("letting the next backup begin")
			of = &backupv1alpha1.VirtualMachineBackup{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "next"}}
			of.Spec.Source = corev1.TypedLocalObjectReference{APIGroup: ptr.To("kubevirt.io"), Kind: "VirtualMachine",
				Name: "vm"}
			of.Spec.PvcName, of.Spec.SkipQuiesce = ptr.To("backups"), true
			Expect(K8sClient.Create(ctx, of)).To(Succeed())
			attached()
			Expect(ExpectExists(vmi).Status.DiskBackup).To(HaveField("ID", string(of.UID)))
			By("not touching that one")
			cleanUp()
			Expect(vmi.Status.DiskBackup).To(HaveField("Canceled", false))
			Expect(vmi.Spec.UtilityVolumes).NotTo(BeEmpty())
		},
			Entry("while its claim is being attached", attaching, false),
			Entry("while the guest is being frozen", freezing, false),
			Entry("before the agent has begun", attached, true),
			Entry("while it is requested", at(backup.Requested), true),
			Entry("while QEMU copies", at(backup.Running), true),
			Entry("while a pull is requested", pulled(backup.Requested), true),
			Entry("while QEMU serves the disks", pulled(backup.Running), true),
			Entry("while its claim is being detached", at(backup.Succeeded), false),
		)
	})

	Context("with a tracker that goes while it runs", func() {
		var tracker *backupv1alpha1.VirtualMachineBackupTracker

		track := func(vm string) {
			GinkgoHelper()
			tracker = &backupv1alpha1.VirtualMachineBackupTracker{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "t"}}
			tracker.Spec.Source = corev1.TypedLocalObjectReference{APIGroup: ptr.To("kubevirt.io"), Kind: "VirtualMachine",
				Name: vm}
			Expect(K8sClient.Create(ctx, tracker)).To(Succeed())
		}

		BeforeEach(func() {
			Expect(K8sClient.Delete(ctx, of)).To(Succeed())
			track("vm")
			of = &backupv1alpha1.VirtualMachineBackup{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "of-tracker"}}
			of.Spec.Source = corev1.TypedLocalObjectReference{APIGroup: ptr.To("backup.kubevirt.io"),
				Kind: "VirtualMachineBackupTracker", Name: "t"}
			of.Spec.PvcName = ptr.To("backups")
			Expect(K8sClient.Create(ctx, of)).To(Succeed())
			reconcile()
			mounted(true)
			record(backup.Running, "")
		})

		goes := func(replaced bool) {
			GinkgoHelper()
			Expect(K8sClient.Delete(ctx, tracker)).To(Succeed())
			if replaced {
				other := builder.MakeVMI("another").Namespace(ns).PVC("root", "other").Obj()
				ExpectCreated(other)
				SetVMIStatus(other, v1.Running, func(*v1.VirtualMachineInstanceStatus) {})
				track("another")
			}
			reconcile()
		}
		expectNothingLeft := func() {
			GinkgoHelper()
			Expect(ExpectExists(vmi).Spec.UtilityVolumes).To(BeEmpty())
			mounted(false)
			Expect(ExpectExists(vmi).Status.DiskBackup).To(BeNil())
		}

		DescribeTable("completes", func(replaced, stale bool) {
			if stale {
				r.Client.(*Writes).StaleList = &v1.VirtualMachineInstanceList{}
			}
			goes(replaced)
			Expect(conditionOf(backupv1alpha1.ConditionProgressing).Reason).To(Equal(backupv1alpha1.ReasonInitiated))
			record(backup.Succeeded, "")
			expectNothingLeft()
			Expect(conditionOf(backupv1alpha1.ConditionComplete).Status).To(Equal(metav1.ConditionTrue))
			Expect(of.Finalizers).To(BeEmpty())
			if replaced {
				Expect(ExpectExists(tracker).Status).To(BeNil())
			}
		},
			Entry("if it was deleted", false, false),
			Entry("if it was deleted, and the cache is stale", false, true),
			Entry("if it was replaced by that of another VM", true, false),
		)

		DescribeTable("is aborted", func(replaced bool) {
			Expect(K8sClient.Delete(ctx, of)).To(Succeed())
			reconcile()
			goes(replaced)
			Expect(ExpectExists(vmi).Status.DiskBackup.Canceled).To(BeTrue())
			record(backup.Failed, "aborted")
			expectNothingLeft()
			ExpectGone(of)
		},
			Entry("if it was deleted", false),
			Entry("if it was replaced by that of another VM", true),
		)
	})

	It("fails if the guest ends", func() {
		reconcile()
		mounted(true)
		record(backup.Running, "")
		guest(func(s *v1.VirtualMachineInstanceStatus) { s.Phase = v1.Succeeded })
		Expect(conditionOf(backupv1alpha1.ConditionFailed).Reason).To(Equal(backupv1alpha1.ReasonSourceLost))
		Expect(of.Finalizers).To(BeEmpty())
		Expect(events.Take()).To(ContainElement(HavePrefix("Warning VirtualMachineBackupFailed")))
	})

	It("ignores a VMI that the VM does not control", func() {
		before := client.MergeFrom(ExpectExists(vmi).DeepCopy())
		vmi.OwnerReferences = nil
		Expect(K8sClient.Patch(ctx, vmi, before)).To(Succeed())
		reconcile()
		Expect(ExpectExists(vmi).Spec.UtilityVolumes).To(BeEmpty())
		Expect(conditionOf(backupv1alpha1.ConditionProgressing).Message).To(Equal("vm vm is not running, cannot do backup"))
	})
})

// versionOf returns the resource version of an object on the API server, or "" if it is gone.
func versionOf(object client.Object) string {
	GinkgoHelper()
	read := object.DeepCopyObject().(client.Object)
	if err := K8sClient.Get(ctx, client.ObjectKeyFromObject(object), read); err != nil {
		Expect(client.IgnoreNotFound(err)).To(Succeed())
		return ""
	}
	return read.GetResourceVersion()
}
