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
	exportv1 "github.com/vireo-project/vireo/api/export/v1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/certificate"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/conditions"
	"github.com/vireo-project/vireo/internal/controller/storage/virtualmachinebackup"
	"github.com/vireo-project/vireo/internal/controller/storage/virtualmachineexport"
	"github.com/vireo-project/vireo/internal/decide/backup"
	"github.com/vireo-project/vireo/internal/decide/backup/plan"
	"github.com/vireo-project/vireo/test/builder"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

// These specs use the reconciler of exports too: that a guest can be read, and when this ends, is what both agree on.
var _ = Describe("A VirtualMachineBackup that is pulled", func() {
	var (
		ns      string
		events  *RecordedEvents
		clock   *clocktesting.FakePassiveClock
		exports *virtualmachineexport.Reconciler
		backups *virtualmachinebackup.Reconciler
		vmi     *v1.VirtualMachineInstance
		of      *backupv1alpha1.VirtualMachineBackup
		tracker *backupv1alpha1.VirtualMachineBackupTracker
		export  *exportv1.VirtualMachineExport
		pod     *corev1.Pod
	)

	// reconcile reconciles the backup and its export until nothing changes any more.
	reconcile := func() {
		GinkgoHelper()
		for last := ""; ; {
			_, err := Reconcile(backups, of)
			Expect(err).NotTo(HaveOccurred())
			_, err = Reconcile(exports, export)
			Expect(err).NotTo(HaveOccurred())
			now := versionOf(of) + "/" + versionOf(vmi) + "/" + versionOf(export) + "/" + versionOf(pod)
			if now == last {
				return
			}
			last = now
		}
	}
	guest := func(change func(*v1.VirtualMachineInstanceStatus)) {
		GinkgoHelper()
		before := client.MergeFrom(ExpectExists(vmi).DeepCopy())
		change(&vmi.Status)
		Expect(K8sClient.Status().Patch(ctx, vmi, before)).To(Succeed())
		reconcile()
	}
	record := func(stage backup.Stage) {
		GinkgoHelper()
		guest(func(s *v1.VirtualMachineInstanceStatus) {
			s.DiskBackupRecord = backup.Record{
				ID: string(of.UID), Stage: stage, StartedAt: time.Now(), Pull: true, Canceled: stage == backup.Succeeded,
				Checkpoint: s.DiskBackup.Checkpoint,
			}.Status()
		})
	}
	exporter := func(change func(*corev1.PodStatus)) {
		GinkgoHelper()
		before := client.MergeFrom(ExpectExists(pod).DeepCopy())
		change(&pod.Status)
		Expect(K8sClient.Status().Patch(ctx, pod, before)).To(Succeed())
		reconcile()
	}
	conditionOf := func(kind backupv1alpha1.ConditionType) *metav1.Condition {
		GinkgoHelper()
		return meta.FindStatusCondition(ExpectExists(of).Status.Conditions, string(kind))
	}
	// serve brings the backup to the point at which it can be pulled.
	serve := func() {
		GinkgoHelper()
		reconcile()
		guest(func(s *v1.VirtualMachineInstanceStatus) {
			s.VolumeStatus = append(s.VolumeStatus, v1.VolumeStatus{Name: plan.VolumeName(of), Phase: v1.HotplugVolumeMounted})
		})
		Expect(ExpectExists(vmi).Status.DiskBackup).To(HaveField("Pull", Not(BeNil())))
		record(backup.Running)
		Expect(ExpectExists(export).Spec.Source.Name).To(Equal("b"))
		Expect(conditionOf(backupv1alpha1.ConditionProgressing).Reason).To(Equal(backupv1alpha1.ReasonPreparingExport))
		exporter(func(s *corev1.PodStatus) {
			s.Phase, s.PodIP, s.PodIPs = corev1.PodRunning, "10.0.0.9", []corev1.PodIP{{IP: "10.0.0.9"}}
			s.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		})
		Expect(backup.IntentOf(&ExpectExists(vmi).Status).Exporter).To(Equal(backup.Exporter{
			IP: "10.0.0.9", Port: backup.ExporterPort, ServerName: "virt-export-b." + ns + ".svc", UID: string(pod.UID),
		}))
		Expect(conditionOf(backupv1alpha1.ConditionProgressing).Reason).To(Equal(backupv1alpha1.ReasonExportReady))
		Expect(of.Status.IncludedVolumes).To(ConsistOf(backupv1alpha1.BackupVolumeInfo{
			VolumeName: "root", DiskTarget: "vda", DataEndpoint: "https://virt-export-b." + ns + ".svc/exports/root/data",
			MapEndpoint: "https://virt-export-b." + ns + ".svc/exports/root/map",
		}))
		Expect(of.Status.ExportUID).To(HaveValue(Equal(export.UID)))
		Expect(of.Status.EndpointCert).To(HaveValue(ContainSubstring("CERTIFICATE")))
	}
	// end ends the exporter with a report, the agent's job, and the attachment of the claim.
	end := func(report string) {
		GinkgoHelper()
		Expect(ExpectExists(vmi).Status.DiskBackup.Canceled).To(BeFalse(), "the exporter has not reported yet")
		Expect(ExpectExists(pod).Spec.ActiveDeadlineSeconds).To(HaveValue(BeEquivalentTo(1)))
		exporter(func(s *corev1.PodStatus) {
			s.Phase, s.Conditions = corev1.PodFailed, nil
			s.ContainerStatuses = []corev1.ContainerStatus{{Name: "exporter",
				State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: report}}}}
		})
		Expect(ExpectExists(vmi).Status.DiskBackup.Canceled).To(BeTrue())
		record(backup.Succeeded)
		guest(func(s *v1.VirtualMachineInstanceStatus) { s.VolumeStatus = s.VolumeStatus[:1] })
		Expect(ExpectExists(vmi).Status.DiskBackup).To(BeNil())
		Expect(vmi.Spec.UtilityVolumes).To(BeEmpty())
	}

	BeforeEach(func() {
		install, writes := NewInstallNamespace(), NewWrites()
		ns, events, clock = NewNamespace(), &RecordedEvents{}, clocktesting.NewFakePassiveClock(time.Now())
		images := clusterconfig.Images{Exporter: "example.org/virt-exportserver:v1"}
		exports = &virtualmachineexport.Reconciler{
			Client: writes, APIReader: AsController, Pods: ExporterPods{Reader: K8sClient}, Recorder: events,
			DataVolumes:     DataVolumes{},
			VolumeSnapshots: VolumeSnapshots{}, Config: clusterconfig.NewStore(clusterconfig.WithImages(images)),
			Namespace: install, Clock: clock,
		}
		backups = &virtualmachinebackup.Reconciler{
			Client: writes, APIReader: AsController, Pods: ExporterPods{Reader: K8sClient}, Recorder: events, Clock: clock,
		}
		NewAuthority(install, certificate.Exporter, clock.Now())
		NewAuthority(install, certificate.AgentBackup, clock.Now())
		vm := builder.MakeVM("vm").Namespace(ns).Template(builder.MakeVMI("vm").PVC("root", "root")).Obj()
		tracker = TrackerOf(vm)
		ExpectCreated(vm, tracker, builder.MakePVC("scratch").Namespace(ns).Bound("1Gi").Obj())
		vmi = builder.MakeVMI("vm").Namespace(ns).PVC("root", "root").OwnedBy(ExpectExists(vm)).Obj()
		ExpectCreated(vmi)
		SetVMIStatus(vmi, v1.Running, func(s *v1.VirtualMachineInstanceStatus) {
			s.NodeName, s.TrackedVolumes = "node", []string{"root"}
			s.VolumeStatus = []v1.VolumeStatus{{Name: "root", Target: "vda"}}
		})
		of = &backupv1alpha1.VirtualMachineBackup{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "b"}}
		of.Spec.Source = corev1.TypedLocalObjectReference{APIGroup: ptr.To("backup.kubevirt.io"),
			Kind: "VirtualMachineBackupTracker", Name: "t"}
		of.Spec.PvcName, of.Spec.Mode = ptr.To("scratch"), ptr.To(backupv1alpha1.PullMode)
		Expect(K8sClient.Create(ctx, of)).To(MatchError(ContainSubstring("tokenSecretRef is required when mode is Pull")))
		of.Spec.TokenSecretRef = "token"
		Expect(K8sClient.Create(ctx, of)).To(Succeed())
		export = &exportv1.VirtualMachineExport{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "b"}}
		pod = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "virt-export-b"}}
	})

	It("can be read until its time is over, and advances its tracker if all was read", func() {
		serve()
		clock.SetTime(plan.Expiry(of))
		reconcile()
		end(`{"volumes":1,"unread":0}`)
		Expect(conditionOf(backupv1alpha1.ConditionComplete)).To(HaveField("Reason", backupv1alpha1.ReasonCompleted))
		Expect(ExpectExists(tracker).Status.LatestCheckpoint).To(HaveField("Name", *of.Status.CheckpointName))
		Expect(of.Finalizers).To(BeEmpty())
		ExpectGone(export)
	})

	It("leaves its tracker as it was if it is deleted and nobody has read it", func() {
		serve()
		Expect(K8sClient.Delete(ctx, of)).To(Succeed())
		reconcile()
		end(`{"volumes":1,"unread":1,"names":["root"]}`)
		ExpectGone(of)
		ExpectGone(export)
		Expect(ExpectExists(tracker).Status).To(BeNil())
		Expect(events.Take()).To(
			ContainElement(And(HavePrefix("Warning VirtualMachineBackupCompletedWithWarning"), ContainSubstring("not read"))))
	})

	It("ends with its exporter if it is removed by force", func() {
		serve()
		ExpectExists(of).Finalizers = nil
		Expect(K8sClient.Update(ctx, of)).To(Succeed())
		Expect(K8sClient.Delete(ctx, of)).To(Succeed())
		reconcile()
		_, err := Reconcile(virtualmachinebackup.Abandoned{Reconciler: backups}, vmi)
		Expect(err).NotTo(HaveOccurred())
		Expect(ExpectExists(vmi).Status.DiskBackup.Canceled).To(BeTrue())
		Expect(metav1.GetControllerOf(ExpectExists(export)).UID).To(Equal(of.UID), "the garbage collector deletes it")
		ExpectGone(pod)
	})

	It("is exported by no other export", func() {
		serve()
		other := &exportv1.VirtualMachineExport{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "export"}}
		other.Spec.Source = corev1.TypedLocalObjectReference{APIGroup: ptr.To("backup.kubevirt.io"),
			Kind: "VirtualMachineBackup", Name: "b"}
		ExpectCreated(other)
		_, err := Reconcile(exports, other)
		Expect(err).NotTo(HaveOccurred())
		Expect(conditions.Find(ExpectExists(other).Status.Conditions, exportv1.ConditionReady).Message).
			To(ContainSubstring("nothing but the export"))
	})

	It("is exported again if its export was deleted", func() {
		serve()
		Expect(K8sClient.Delete(ctx, ExpectExists(export))).To(Succeed())
		Expect(K8sClient.Delete(ctx, pod, client.GracePeriodSeconds(0))).To(Succeed())
		before := export.UID
		reconcile()
		Expect(ExpectExists(export).UID).NotTo(Equal(before))
		Expect(conditionOf(backupv1alpha1.ConditionProgressing).Reason).To(Equal(backupv1alpha1.ReasonPreparingExport))
		Expect(of.Status.ExportUID).To(BeNil())
		Expect(backup.IntentOf(&ExpectExists(vmi).Status).Exporter).To(Equal(backup.Exporter{}))
	})
})
