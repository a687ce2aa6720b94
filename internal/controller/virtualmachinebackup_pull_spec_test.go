// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package controller_test

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1alpha1 "github.com/vireo-project/vireo/api/backup/v1alpha1"
	exportv1 "github.com/vireo-project/vireo/api/export/v1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/backup"
	"github.com/vireo-project/vireo/internal/backup/plan"
	"github.com/vireo-project/vireo/internal/certificate"
	"github.com/vireo-project/vireo/internal/conditions"
	"github.com/vireo-project/vireo/internal/controller/virtualmachinebackup"
	"github.com/vireo-project/vireo/test/builder"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

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

var _ = Describe("A VirtualMachineBackup that is pulled", func() {
	var (
		w       *exports
		backups *virtualmachinebackup.Reconciler
		vmi     *v1.VirtualMachineInstance
		of      *backupv1alpha1.VirtualMachineBackup
		tracker *backupv1alpha1.VirtualMachineBackupTracker
		export  *vmExport
		pod     *corev1.Pod
	)

	// reconcile reconciles the backup and its export until nothing changes any more.
	reconcile := func() {
		GinkgoHelper()
		request := ctrl.Request{NamespacedName: client.ObjectKeyFromObject(of)}
		for last := ""; ; {
			_, err := backups.Reconcile(ctx, request)
			Expect(err).NotTo(HaveOccurred())
			_, err = w.Reconcile(ctx, request)
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
				ID: string(of.UID), Stage: stage, StartedAt: time.Now(), Pull: true, Canceled: stage == backup.Succeeded, Checkpoint: s.DiskBackup.Checkpoint,
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
			IP: "10.0.0.9", Port: backup.ExporterPort, ServerName: "virt-export-b." + w.ns + ".svc", UID: string(pod.UID),
		}))
		Expect(conditionOf(backupv1alpha1.ConditionProgressing).Reason).To(Equal(backupv1alpha1.ReasonExportReady))
		Expect(of.Status.IncludedVolumes).To(ConsistOf(backupv1alpha1.BackupVolumeInfo{
			VolumeName: "root", DiskTarget: "vda", DataEndpoint: "https://virt-export-b." + w.ns + ".svc/exports/root/data",
			MapEndpoint: "https://virt-export-b." + w.ns + ".svc/exports/root/map",
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
			s.ContainerStatuses = []corev1.ContainerStatus{{Name: "exporter", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: report}}}}
		})
		Expect(ExpectExists(vmi).Status.DiskBackup.Canceled).To(BeTrue())
		record(backup.Succeeded)
		guest(func(s *v1.VirtualMachineInstanceStatus) { s.VolumeStatus = s.VolumeStatus[:1] })
		Expect(ExpectExists(vmi).Status.DiskBackup).To(BeNil())
		Expect(vmi.Spec.UtilityVolumes).To(BeEmpty())
	}

	BeforeEach(func() {
		w = newExports()
		backups = &virtualmachinebackup.Reconciler{
			Client: w.writes, APIReader: AsController, Pods: ExporterPods{Reader: K8sClient}, Recorder: w.events, Clock: w.clock,
		}
		none, err := certificate.AuthorityFrom(certificate.AgentBackup, nil)
		Expect(err).NotTo(HaveOccurred())
		agents, _, _, err := none.Advance(w.clock.Now(), w.Config.Current().Certificates)
		Expect(err).NotTo(HaveOccurred())
		data, err := agents.Data()
		Expect(err).NotTo(HaveOccurred())
		vm := builder.MakeVM("vm").Namespace(w.ns).Template(builder.MakeVMI("vm").PVC("root", "root")).Obj()
		tracker = &backupv1alpha1.VirtualMachineBackupTracker{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "t"}}
		tracker.Spec.Source = corev1.TypedLocalObjectReference{APIGroup: ptr.To("kubevirt.io"), Kind: "VirtualMachine", Name: "vm"}
		ExpectCreated(vm, tracker, builder.MakePVC("scratch").Namespace(w.ns).Bound("1Gi").Obj(), &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: w.install, Name: certificate.AgentBackup.AuthoritySecret()}, Type: corev1.SecretTypeTLS, Data: data,
		})
		vmi = builder.MakeVMI("vm").Namespace(w.ns).PVC("root", "root").OwnedBy(ExpectExists(vm)).Obj()
		ExpectCreated(vmi)
		SetVMIStatus(vmi, v1.Running, func(s *v1.VirtualMachineInstanceStatus) {
			s.NodeName, s.TrackedVolumes = "node", []string{"root"}
			s.VolumeStatus = []v1.VolumeStatus{{Name: "root", Target: "vda"}}
		})
		of = &backupv1alpha1.VirtualMachineBackup{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "b"}}
		of.Spec.Source = corev1.TypedLocalObjectReference{APIGroup: ptr.To("backup.kubevirt.io"), Kind: "VirtualMachineBackupTracker", Name: "t"}
		of.Spec.PvcName, of.Spec.Mode = ptr.To("scratch"), ptr.To(backupv1alpha1.PullMode)
		Expect(K8sClient.Create(ctx, of)).To(MatchError(ContainSubstring("tokenSecretRef is required when mode is Pull")))
		of.Spec.TokenSecretRef = "token"
		Expect(K8sClient.Create(ctx, of)).To(Succeed())
		export = &vmExport{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "b"}}
		pod = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "virt-export-b"}}
	})

	It("can be read until its time is over, and advances its tracker if all was read", func() {
		serve()
		w.clock.SetTime(plan.Expiry(of))
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
		Expect(w.events.Take()).To(ContainElement(And(HavePrefix("Warning VirtualMachineBackupCompletedWithWarning"), ContainSubstring("not read"))))
	})

	It("ends with its exporter if it is removed by force", func() {
		serve()
		ExpectExists(of).Finalizers = nil
		Expect(K8sClient.Update(ctx, of)).To(Succeed())
		Expect(K8sClient.Delete(ctx, of)).To(Succeed())
		reconcile()
		request := ctrl.Request{NamespacedName: client.ObjectKeyFromObject(vmi)}
		_, err := virtualmachinebackup.Abandoned{Reconciler: backups}.Reconcile(ctx, request)
		Expect(err).NotTo(HaveOccurred())
		Expect(ExpectExists(vmi).Status.DiskBackup.Canceled).To(BeTrue())
		Expect(metav1.GetControllerOf(ExpectExists(export)).UID).To(Equal(of.UID), "the garbage collector deletes it")
		ExpectGone(pod)
	})

	It("is exported by no other export", func() {
		serve()
		other := w.request("backup.kubevirt.io", "VirtualMachineBackup", "b")
		_, err := w.Reconcile(ctx, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(other)})
		Expect(err).NotTo(HaveOccurred())
		Expect(conditions.Find(ExpectExists(other).Status.Conditions, exportv1.ConditionReady).Message).To(ContainSubstring("nothing but the export"))
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
