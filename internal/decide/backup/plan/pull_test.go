// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package plan

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/vireo-project/vireo/api/backup/v1alpha1"
	exportv1 "github.com/vireo-project/vireo/api/export/v1"
	"github.com/vireo-project/vireo/internal/decide/backup"
	"github.com/vireo-project/vireo/internal/decide/snapshot/freeze"
)

// newPulled returns a cluster with a backup that is pulled, of a tracker.
func newPulled(t *testing.T) *cluster {
	c := newCluster(t)
	c.Backup.CreationTimestamp = metav1.NewTime(start)
	c.Backup.Spec.Mode, c.Backup.Spec.TokenSecretRef = ptr.To(v1alpha1.PullMode), "token"
	c.Backup.Spec.Source = corev1.TypedLocalObjectReference{APIGroup: ptr.To("backup.kubevirt.io"),
		Kind: "VirtualMachineBackupTracker", Name: "t"}
	c.Tracker = &v1alpha1.VirtualMachineBackupTracker{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "t"}}
	c.Tracker.Spec.Source.Name = "vm"
	c.VMI.Status.TrackedVolumes = []string{"root"}
	return c
}

// pullRecord does what the agent does for the intent.
func (c *cluster) pullRecord(stage backup.Stage, problem string) {
	c.VMI.Status.DiskBackupRecord = backup.Record{
		ID: "u", Stage: stage, StartedAt: c.Now, Problem: problem, Pull: true, Canceled: stage == backup.Succeeded,
		Checkpoint: c.VMI.Status.DiskBackup.Checkpoint,
	}.Status()
}

// serve brings a pull to the point at which clients can read it.
func (c *cluster) serve() {
	c.t.Helper()
	c.next()
	c.mount()
	if s := c.next(); s.Intent == nil || !s.Intent.Pull || s.Intent.Exporter != (backup.Exporter{}) {
		c.t.Fatalf("the pull is not requested: %+v", s)
	}
	c.pullRecord(backup.Requested, "")
	if s := c.next(); s.Export != nil {
		c.t.Fatal("there is an export before the disks can be read")
	}
	c.pullRecord(backup.Running, "")
	s := c.next()
	if s.Export == nil || s.Export.Name != "b" || !metav1.IsControlledBy(s.Export, c.Backup) ||
		*s.Export.Spec.TokenSecretRef != "token" ||
		s.Export.Spec.Source.Kind != "VirtualMachineBackup" || s.Export.Spec.TTLDuration.Duration != 2*time.Hour {
		c.t.Fatalf("the export is not created: %+v", s.Export)
	}
	c.expect(v1alpha1.ConditionProgressing, metav1.ConditionTrue, v1alpha1.ReasonPreparingExport, "")
	c.ExportPod = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "virt-export-b", UID: "pod-uid"}}
	c.ExportPod.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.0.0.9"}
	want := backup.Exporter{IP: "10.0.0.9", Port: 8444, ServerName: "virt-export-b.ns.svc", UID: "pod-uid"}
	if s := c.next(); s.Intent == nil || s.Intent.Exporter != want || s.Intent.Canceled {
		c.t.Fatalf("the agent does not get the exporter's address: %+v", s.Intent)
	}
	c.Export.Status = &exportv1.VirtualMachineExportStatus{Phase: exportv1.Ready,
		Links: &exportv1.VirtualMachineExportLinks{Internal: &exportv1.VirtualMachineExportLink{
			Cert: "CA", Backups: []exportv1.VirtualMachineExportBackup{{Name: "root",
				Endpoints: []exportv1.VirtualMachineExportBackupEndpoint{
					{Endpoint: exportv1.Data, Url: "https://e/data"}, {Endpoint: exportv1.Map, Url: "https://e/map"},
				}}},
		}}}
	if s := c.next(); s.After != 2*time.Hour || s.Intent != nil {
		c.t.Errorf("the pull is planned again after %s: %+v", s.After, s.Intent)
	}
	c.expect(v1alpha1.ConditionProgressing, metav1.ConditionTrue, v1alpha1.ReasonExportReady, "")
}

// report does what the reconciler of exports does when the exporter has ended.
func (c *cluster) report(status corev1.ConditionStatus, message string) {
	c.Export.Status.Conditions = []exportv1.Condition{{Type: exportv1.ConditionBackupRead, Status: status,
		Message: message}}
}

// conclude brings a pull whose exporter has reported to its end.
func (c *cluster) conclude() {
	c.t.Helper()
	if s := c.next(); s.Intent == nil || !s.Intent.Canceled {
		c.t.Fatalf("the agent does not end the pull: %+v", s)
	}
	if s := c.next(); s.Intent != nil || s.RemoveVolume != "" {
		c.t.Fatalf("something happens before the agent has ended the pull: %+v", s)
	}
	c.pullRecord(backup.Succeeded, "")
	if s := c.next(); s.RemoveVolume == "" {
		c.t.Fatalf("the claim is not detached: %+v", s)
	}
	c.unmount()
}

func TestPull(t *testing.T) {
	c := newPulled(t)
	c.serve()
	want := []v1alpha1.BackupVolumeInfo{{VolumeName: "root", DiskTarget: "vda", DataEndpoint: "https://e/data",
		MapEndpoint: "https://e/map"}}
	if diff := cmp.Diff(want, c.Backup.Status.IncludedVolumes); diff != "" {
		t.Errorf("volumes (-want +got):\n%s", diff)
	}
	if *c.Backup.Status.EndpointCert != "CA" || *c.Backup.Status.ExportUID != "export-uid" {
		t.Errorf("the status is %+v", c.Backup.Status)
	}
	c.Now = start.Add(2 * time.Hour)
	if s := c.next(); s.Intent != nil || s.After != reportWait {
		t.Fatalf("the pull ends before the exporter has reported: %+v", s)
	}
	c.expect(v1alpha1.ConditionProgressing, metav1.ConditionTrue, v1alpha1.ReasonAborting, "has expired")
	c.report(corev1.ConditionTrue, "")
	c.conclude()
	s := c.next()
	if s.Checkpoint == nil || s.Checkpoint.Volumes[0].DataEndpoint != "" {
		t.Fatalf("the tracker does not get the checkpoint: %+v", s.Checkpoint)
	}
	c.next()
	c.expect(v1alpha1.ConditionComplete, metav1.ConditionTrue, v1alpha1.ReasonCompleted, "all data")
	if s := c.next(); !s.DeleteExport {
		t.Fatalf("the export is not deleted: %+v", s)
	}
	c.next()
	if s := c.next(); !s.Done {
		t.Errorf("something is left: %+v", s)
	}
}

func TestPullThatNobodyHasRead(t *testing.T) {
	for name, end := range map[string]func(*cluster){
		"a part of it":     func(c *cluster) { c.report(corev1.ConditionFalse, "1 of 1 volumes") },
		"no report":        func(c *cluster) { c.Now = c.Now.Add(reportWait) },
		"no export":        func(c *cluster) { c.Export, c.ExportPod = nil, nil },
		"a foreign export": func(c *cluster) { c.Export.OwnerReferences = nil },
	} {
		c := newPulled(t)
		c.serve()
		c.Backup.DeletionTimestamp = ptr.To(metav1.NewTime(c.Now))
		end(c)
		c.conclude()
		if s := c.next(); s.Checkpoint != nil {
			t.Errorf("%s: the tracker gets the checkpoint", name)
		}
		c.expect(v1alpha1.ConditionComplete, metav1.ConditionTrue, v1alpha1.ReasonCompletedWithWarning,
			"The backup was not read completely")
		if got := c.completion(); strings.Count(got, "next backup does not start from it") != 1 {
			t.Errorf("%s: the message is %q", name, got)
		}
		for range 3 {
			if s := c.next(); s.Done {
				break
			}
		}
		if !Next(c.Observed).Done || c.Tracker.Status != nil {
			t.Errorf("%s: something is left", name)
		}
	}
}

func TestExportThatIsDeletedAfterItWasRead(t *testing.T) {
	c := newPulled(t)
	c.serve()
	c.Now = start.Add(2 * time.Hour)
	c.report(corev1.ConditionTrue, "")
	c.conclude()
	if s := c.next(); s.Checkpoint == nil {
		t.Fatalf("the tracker does not get the checkpoint: %+v", s)
	}
	c.Export, c.ExportPod = nil, nil
	c.next()
	c.expect(v1alpha1.ConditionComplete, metav1.ConditionTrue, v1alpha1.ReasonCompleted, beginsComplete)
}

func TestPullWithoutACheckpointThatNobodyHasRead(t *testing.T) {
	for name, change := range map[string]func(*cluster){
		"of a VM": func(c *cluster) {
			c.Backup.Spec.Source = corev1.TypedLocalObjectReference{APIGroup: ptr.To("kubevirt.io"), Kind: "VirtualMachine",
				Name: "vm"}
			c.Tracker = nil
		},
		"of a guest without tracked disks": func(c *cluster) { c.VMI.Status.TrackedVolumes = nil },
	} {
		c := newPulled(t)
		change(c)
		c.serve()
		c.Now = start.Add(2 * time.Hour)
		c.report(corev1.ConditionFalse, "1 of 1 volumes")
		c.conclude()
		c.next()
		c.expect(v1alpha1.ConditionComplete, metav1.ConditionTrue, v1alpha1.ReasonCompleted,
			"The backup was not read completely: 1 of 1 volumes")
		c.expect(v1alpha1.ConditionComplete, metav1.ConditionTrue, v1alpha1.ReasonCompleted, beginsComplete)
		if ended := c.completion(); strings.Contains(ended, "next backup") || c.Backup.Status.CheckpointName != nil {
			t.Errorf("%s: %s", name, ended)
		}
	}
}

// completion returns the message of the condition Complete.
func (c *cluster) completion() string {
	return meta.FindStatusCondition(c.Backup.Status.Conditions, string(v1alpha1.ConditionComplete)).Message
}

func TestPullThatFails(t *testing.T) {
	c := newPulled(t)
	c.serve()
	c.pullRecord(backup.Failed, "the claim has too little room")
	c.next()
	c.unmount()
	c.next()
	c.expect(v1alpha1.ConditionFailed, metav1.ConditionTrue, v1alpha1.ReasonFailed, "too little room")
	if s := c.next(); !s.DeleteExport {
		t.Errorf("the export is not deleted: %+v", s)
	}
	// The guest is gone.
	c = newPulled(t)
	c.serve()
	c.VMI = nil
	c.next()
	c.expect(v1alpha1.ConditionFailed, metav1.ConditionTrue, v1alpha1.ReasonSourceLost, "")
}

func TestExportsOfPulls(t *testing.T) {
	c := newPulled(t)
	c.serve()
	c.Export, c.ExportPod = nil, nil
	if s := c.next(); s.Export == nil || s.Status.ExportUID != nil || s.Status.EndpointCert != nil ||
		s.Status.IncludedVolumes[0].DataEndpoint != "" {
		t.Errorf("an export that was deleted is not created again: %+v", s)
	}
	if s := c.next(); s.Intent == nil || s.Intent.Exporter != (backup.Exporter{}) {
		t.Errorf("the agent still connects to the former exporter: %+v", s.Intent)
	}
	c.Export.OwnerReferences = nil
	if s := c.next(); s.After != foreignPoll || s.DeleteExport {
		t.Errorf("a foreign export: %+v", s)
	}
	c.expect(v1alpha1.ConditionProgressing, metav1.ConditionTrue, v1alpha1.ReasonPreparingExport, "does not belong")
}

func TestPullWhoseTimeIsOverBeforeItBegins(t *testing.T) {
	c := newPulled(t)
	c.Backup.Spec.TTLDuration = &metav1.Duration{Duration: time.Minute}
	if s := c.next(); s.After != time.Minute {
		t.Errorf("the backup is planned again after %s", s.After)
	}
	c.Now = start.Add(time.Minute)
	c.next()
	c.expect(v1alpha1.ConditionFailed, metav1.ConditionTrue, v1alpha1.ReasonFailed, "before its ttlDuration expired")
	if meta.IsStatusConditionTrue(c.Backup.Status.Conditions, string(v1alpha1.ConditionComplete)) {
		t.Error("it is complete")
	}
}

func TestPullThatNeverBegins(t *testing.T) {
	for name, requested := range map[string]bool{"the agent does not respond": false, "libvirt has not begun it": true} {
		c := newPulled(t)
		c.next()
		c.mount()
		if s := c.next(); s.Intent == nil {
			t.Fatalf("%s: the pull is not requested: %+v", name, s)
		}
		if requested {
			c.pullRecord(backup.Requested, "")
		}
		if s := c.next(); s.Intent != nil || s.After != 2*time.Hour {
			t.Errorf("%s: planned again after %s: %+v", name, s.After, s.Intent)
		}
		c.Now = start.Add(2 * time.Hour)
		if s := c.next(); s.Intent == nil || !s.Intent.Canceled {
			t.Fatalf("%s: migrations wait for the backup forever: %+v", name, s)
		}
		c.expect(v1alpha1.ConditionProgressing, metav1.ConditionTrue, v1alpha1.ReasonAborting,
			"before its ttlDuration expired")
		if s := c.next(); s.Intent != nil || s.RemoveVolume != "" {
			t.Errorf("%s: something happens before the agent has responded: %+v", name, s)
		}
		c.expect(v1alpha1.ConditionProgressing, metav1.ConditionTrue, v1alpha1.ReasonAborting,
			"before its ttlDuration expired")
		c.pullRecord(backup.Failed, "canceled")
		if s := c.next(); s.RemoveVolume == "" {
			t.Errorf("%s: the claim is not detached: %+v", name, s)
		}
		c.unmount()
		c.next()
		c.expect(v1alpha1.ConditionFailed, metav1.ConditionTrue, v1alpha1.ReasonFailed, "canceled")
	}
}

func TestPullThatBeginsTooLate(t *testing.T) {
	c := newPulled(t)
	c.connectAgent()
	c.next()
	c.mount()
	c.next()
	c.freeze(freeze.Frozen, false, "")
	if s := c.next(); s.Intent == nil {
		t.Fatalf("the pull is not requested: %+v", s)
	}
	c.Now = start.Add(2 * time.Hour)
	if s := c.next(); s.Intent == nil || !s.Intent.Canceled {
		t.Fatalf("the pull is not canceled: %+v", s)
	}
	// The guest does not stay frozen, whatever the agent does.
	if s := c.next(); s.Freeze == nil {
		t.Errorf("the freeze is not ended: %+v", s)
	}
	// libvirt had begun meanwhile. The agent has written that it ends the pull, and has ended it.
	c.freeze(freeze.Thawed, true, "")
	c.pullRecord(backup.Succeeded, "")
	for range 3 {
		c.next()
	}
	c.unmount()
	for range 2 {
		if s := c.next(); s.Checkpoint != nil {
			t.Error("the tracker gets the checkpoint of a pull that nobody could read")
		}
	}
	c.expect(v1alpha1.ConditionComplete, metav1.ConditionTrue, v1alpha1.ReasonCompletedWithWarning, "export was deleted")
}

func TestUrgentMigrationEndsAPull(t *testing.T) {
	for name, source := range map[string]func(*cluster){"of a tracker": func(*cluster) {},
		"of a VM": func(c *cluster) { c.Tracker = nil }} {
		c := newPulled(t)
		source(c)
		if c.Tracker == nil {
			c.Backup.Spec.Source = corev1.TypedLocalObjectReference{APIGroup: ptr.To("kubevirt.io"), Kind: "VirtualMachine",
				Name: "vm"}
		}
		c.serve()
		c.MigrationPending = true
		if s := c.next(); s.Intent != nil {
			t.Errorf("%s: another migration ends the pull: %+v", name, s.Intent)
		}
		c.MigrationUrgent = true
		if s := c.next(); s.Intent == nil || !s.Intent.Canceled {
			t.Fatalf("%s: the migration waits for the pull: %+v", name, s)
		}
		c.expect(v1alpha1.ConditionProgressing, metav1.ConditionTrue, v1alpha1.ReasonAborting, "system-critical")
		// Nothing starts again if the migration is deleted meanwhile.
		c.MigrationUrgent, c.MigrationPending = false, false
		c.ExportPod = nil
		if s := c.next(); s.Intent != nil || s.Export != nil {
			t.Errorf("%s: the pull goes on: %+v", name, s)
		}
		c.expect(v1alpha1.ConditionProgressing, metav1.ConditionTrue, v1alpha1.ReasonAborting, "system-critical")
		c.pullRecord(backup.Succeeded, "")
		if s := c.next(); s.RemoveVolume == "" {
			t.Fatalf("%s: the claim is not detached: %+v", name, s)
		}
		c.unmount()
		if s := c.next(); s.Checkpoint != nil {
			t.Errorf("%s: the tracker gets the checkpoint", name)
		}
		c.expect(v1alpha1.ConditionComplete, metav1.ConditionTrue, v1alpha1.ReasonCompletedWithWarning, "system-critical")
		c.expect(v1alpha1.ConditionComplete, metav1.ConditionTrue, v1alpha1.ReasonCompletedWithWarning,
			"The backup was not read completely")
	}
	// A pull that is deleted ends anyway, and soon. What clients have read is not lost.
	c := newPulled(t)
	c.serve()
	c.Backup.DeletionTimestamp = ptr.To(metav1.NewTime(c.Now))
	c.MigrationPending, c.MigrationUrgent = true, true
	if s := c.next(); s.Intent != nil || s.After != reportWait {
		t.Errorf("the pull ends before its exporter has reported: %+v", s)
	}
}
