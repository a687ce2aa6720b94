// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package export

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/vireo-project/vireo/api/backup/v1alpha1"
	exportv1 "github.com/vireo-project/vireo/api/export/v1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/conditions"
	"github.com/vireo-project/vireo/internal/decide/backup"
	"github.com/vireo-project/vireo/internal/exporter/content"
)

// ofBackup returns the export of a backup that is pulled, of a guest on node blue.
func ofBackup() *Observed {
	w := exportOf(KindBackup, "backup.kubevirt.io", "b")
	w.Config.AgentCA = "agents"
	w.Backup = &v1alpha1.VirtualMachineBackup{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "b",
		UID: "backup-uid", CreationTimestamp: metav1.NewTime(now)}}
	w.Backup.Spec.Mode = ptr.To(v1alpha1.PullMode)
	w.Backup.Status = &v1alpha1.VirtualMachineBackupStatus{
		IncludedVolumes: []v1alpha1.BackupVolumeInfo{{VolumeName: "root"}, {VolumeName: "data"}}}
	w.Export.OwnerReferences = []metav1.OwnerReference{{UID: "backup-uid", Controller: ptr.To(true)}}
	w.Guest = &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "vm.example",
		UID: "vmi-uid"}}
	w.Guest.Status.NodeName = "blue"
	w.Guest.Status.DiskBackupRecord = backup.Record{ID: "backup-uid", Pull: true, Stage: backup.Running}.Status()
	return w
}

// plan plans a step.
func (w *Observed) plan(t *testing.T) *Step {
	t.Helper()
	step, err := Next(w)
	if err != nil {
		t.Fatal(err)
	}
	w.Export.Status = step.Status
	return step
}

// readiness returns the message of the condition Ready.
func (w *Observed) readiness() string {
	return conditions.Find(w.Export.Status.Conditions, exportv1.ConditionReady).Message
}

// runPod creates the Pod of the export, which runs and is ready.
func (w *Observed) runPod(t *testing.T) {
	t.Helper()
	step := w.plan(t)
	if step.Pod == nil {
		t.Fatalf("there is no Pod: %s", w.readiness())
	}
	w.Service, w.Pod = w.service(), step.Pod
	w.Pod.Status = corev1.PodStatus{Phase: corev1.PodRunning,
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
}

// endPod ends it with a termination message.
func (w *Observed) endPod(message string) {
	w.Pod.Status.Phase, w.Pod.Status.Conditions = corev1.PodFailed, nil
	w.Pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: Container,
		State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			Message: message, FinishedAt: metav1.NewTime(w.Now),
		}}}}
}

func TestExportOfABackup(t *testing.T) {
	w := ofBackup()
	w.runPod(t)
	served, err := content.Parse([]byte(w.Pod.Annotations[ContentAnnotation]))
	if err != nil {
		t.Fatal(err)
	}
	want := &content.Backup{Volumes: []string{"root", "data"}, Client: "blue.virt-handler-backup", CA: "agents"}
	if diff := cmp.Diff(want, served.Backup); diff != "" {
		t.Errorf("content (-want +got):\n%s", diff)
	}
	if ports := w.Pod.Spec.Containers[0].Ports; len(ports) != 2 || ports[1].ContainerPort != 8444 {
		t.Errorf("the ports are %v", ports)
	}
	w.plan(t)
	if w.Export.Status.Phase != exportv1.Ready {
		t.Fatalf("the export is not ready: %s", w.readiness())
	}
	base := "https://virt-export-export.default.svc/exports/"
	link := w.Export.Status.Links.Internal
	if len(link.Volumes) != 0 || len(link.Backups) != 2 || link.Backups[0].Name != "root" {
		t.Fatalf("the links are %+v", link)
	}
	endpoints := []exportv1.VirtualMachineExportBackupEndpoint{{Endpoint: exportv1.Data, Url: base + "root/data"},
		{Endpoint: exportv1.Map, Url: base + "root/map"}}
	if diff := cmp.Diff(endpoints, link.Backups[0].Endpoints); diff != "" {
		t.Errorf("endpoints (-want +got):\n%s", diff)
	}
	w.Config.AgentCA = "rotated"
	if step := w.plan(t); !strings.Contains(step.Content, "rotated") || step.Delete {
		t.Error("the exporter does not get the new authority of agents")
	}
	w.Guest.Status.DiskBackupRecord.Since = "before"
	if step := w.plan(t); !step.Stop {
		t.Error("an exporter of all data serves an incremental backup")
	}
}

func TestExporterPrefersTheNodeOfTheGuest(t *testing.T) {
	w := ofBackup()
	w.runPod(t)
	if w.Pod.Spec.Affinity == nil || w.Pod.Spec.Affinity.PodAffinity == nil {
		t.Fatal("the exporter runs anywhere")
	}
	terms := w.Pod.Spec.Affinity.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution
	if len(terms) != 1 || terms[0].Weight != 100 || terms[0].PodAffinityTerm.TopologyKey != "kubernetes.io/hostname" {
		t.Fatalf("got %+v", terms)
	}
	want := map[string]string{"kubevirt.io": "virt-launcher", "vm.kubevirt.io/name": "vm",
		"kubevirt.io/created-by": "vmi-uid"}
	if diff := cmp.Diff(want, terms[0].PodAffinityTerm.LabelSelector.MatchLabels); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
}

func TestBackupsThatCannotBeExported(t *testing.T) {
	for want, change := range map[string]func(*Observed){
		"not found":               func(w *Observed) { w.Backup = nil },
		"nothing but the export":  func(w *Observed) { w.Export.OwnerReferences = nil },
		"cannot be read yet":      func(w *Observed) { w.Guest = nil },
		"cannot be  read yet":     func(w *Observed) { w.Guest.Status.DiskBackupRecord.Pull = false },
		"cannot be   read yet":    func(w *Observed) { w.Guest.Status.DiskBackupRecord.ID = "another" },
		"cannot be    read yet":   func(w *Observed) { w.Guest.Status.DiskBackupRecord.Stage = v1.DiskBackupFailed },
		"cannot be     read yet":  func(w *Observed) { w.Backup.Status = nil },
		"certificates of agents":  func(w *Observed) { w.Config.AgentCA = "" },
		"VirtualMachineBackup":    func(w *Observed) { w.Backup.DeletionTimestamp = ptr.To(metav1.NewTime(now)) },
		"VirtualMachineBackup de": func(w *Observed) { w.Now = now.Add(2 * time.Hour) },
	} {
		w := ofBackup()
		change(w)
		step := w.plan(t)
		if step.Pod != nil || step.Expired || !strings.Contains(w.readiness(), strings.Join(strings.Fields(want), " ")) {
			t.Errorf("%s: %s", want, w.readiness())
		}
	}
}

func TestWhatWasReadOfABackup(t *testing.T) {
	for name, tc := range map[string]struct {
		message string
		status  corev1.ConditionStatus
	}{
		"all":             {`{"volumes":2,"unread":0}`, corev1.ConditionTrue},
		"a part":          {`{"volumes":2,"unread":1,"names":["data"]}`, corev1.ConditionFalse},
		"too many parts":  {`{"volumes":2,"unread":1,"names":["data"],"forgot":true}`, corev1.ConditionFalse},
		"other volumes":   {`{"volumes":1,"unread":0}`, corev1.ConditionFalse},
		"nothing is told": {"", corev1.ConditionFalse},
	} {
		w := ofBackup()
		w.runPod(t)
		w.plan(t)
		if read := conditions.Find(w.Export.Status.Conditions, exportv1.ConditionBackupRead); read != nil {
			t.Errorf("%s: what was read is known before the end: %+v", name, read)
		}
		w.Now = now.Add(2 * time.Hour)
		if step := w.plan(t); !step.Stop || step.Delete || step.RequeueAfter != 0 {
			t.Fatalf("%s: the Pod does not end: %+v", name, step)
		}
		w.Pod.Spec.ActiveDeadlineSeconds = ptr.To[int64](StopDeadline)
		if step := w.plan(t); step.Stop || step.Delete {
			t.Fatalf("%s: the Pod ends twice: %+v", name, step)
		}
		w.endPod(tc.message)
		w.plan(t)
		read := conditions.Find(w.Export.Status.Conditions, exportv1.ConditionBackupRead)
		if read == nil || read.Status != tc.status {
			t.Errorf("%s: got %+v", name, read)
		}
		if read != nil && strings.HasSuffix(read.Message, forgotRanges) != strings.Contains(tc.message, "forgot") {
			t.Errorf("%s: the message is %q", name, read.Message)
		}
	}
}

func TestExportersThatEndTooEarly(t *testing.T) {
	w := ofBackup()
	w.runPod(t)
	w.endPod(`{"volumes":2,"unread":2}`)
	w.plan(t)
	if read := conditions.Find(w.Export.Status.Conditions, exportv1.ConditionBackupRead); read == nil ||
		read.Status != corev1.ConditionFalse {
		t.Fatalf("got %+v", read)
	}
	w.Pod = nil
	if step := w.plan(t); step.Pod == nil ||
		conditions.Find(w.Export.Status.Conditions, exportv1.ConditionBackupRead) != nil {
		t.Error("what an earlier exporter has reported counts for the next one")
	}
	// What was read once stays read.
	w = ofBackup()
	w.runPod(t)
	w.endPod(`{"volumes":2,"unread":0}`)
	w.plan(t)
	w.Pod = nil
	w.plan(t)
	w.Now = now.Add(2 * time.Hour)
	w.plan(t)
	if read := conditions.Find(w.Export.Status.Conditions, exportv1.ConditionBackupRead); read == nil ||
		read.Status != corev1.ConditionTrue {
		t.Errorf("got %+v", read)
	}
	// An exporter that has not started has nothing to report.
	w = ofBackup()
	w.runPod(t)
	w.Pod.Status = corev1.PodStatus{Phase: corev1.PodPending}
	w.Backup.DeletionTimestamp = ptr.To(metav1.NewTime(now))
	if step := w.plan(t); !step.Delete ||
		conditions.Find(w.Export.Status.Conditions, exportv1.ConditionBackupRead) == nil {
		t.Errorf("got %+v", step)
	}
}

func TestObstaclesDoNotEndAPull(t *testing.T) {
	for name, change := range map[string]func(*Observed){
		"no guest":     func(w *Observed) { w.Guest = nil },
		"no record":    func(w *Observed) { w.Guest.Status.DiskBackupRecord = nil },
		"no authority": func(w *Observed) { w.Config.AgentCA = "" },
	} {
		w := ofBackup()
		w.runPod(t)
		w.plan(t)
		change(w)
		if step := w.plan(t); step.Delete || step.Stop || step.RequeueAfter == 0 || step.RequeueAfter > maxPoll ||
			w.Export.Status.Phase != exportv1.Pending {
			t.Errorf("%s: %+v", name, step)
		}
		// The end of the backup does end it.
		w.Backup.DeletionTimestamp = ptr.To(metav1.NewTime(now))
		if step := w.plan(t); !step.Stop {
			t.Errorf("%s: the pull does not end: %+v", name, step)
		}
	}
	// The exporter of a backup that does not exist does not stay.
	w := ofBackup()
	w.runPod(t)
	w.Pod.OwnerReferences = []metav1.OwnerReference{{UID: w.Export.UID, Controller: ptr.To(true)}}
	w.Backup = nil
	if step := w.plan(t); !step.Delete {
		t.Errorf("the exporter of a backup that is gone stays: %+v", step)
	}
}

func TestExportersThatAreReplacedReportBefore(t *testing.T) {
	renew := func(w *Observed) {
		w.Pod.Annotations[CertificateEndAnnotation] = w.Now.Add(renewal).Format(time.RFC3339)
	}
	for name, tc := range map[string]struct {
		replace func(*Observed)
		deletes bool
	}{
		"its certificate expires": {renew, false},
		"it serves other volumes": {func(w *Observed) { w.Backup.Status.IncludedVolumes = w.Backup.Status.IncludedVolumes[:1] }, false},
		"it has not started":      {func(w *Observed) { renew(w); w.Pod.Status = corev1.PodStatus{Phase: corev1.PodPending} }, true},
	} {
		w := ofBackup()
		w.runPod(t)
		tc.replace(w)
		if step := w.plan(t); step.Stop == tc.deletes || step.Delete != tc.deletes {
			t.Errorf("%s: %+v", name, step)
		}
		w.Pod.Spec.ActiveDeadlineSeconds = ptr.To[int64](StopDeadline)
		if step := w.plan(t); step.Stop || step.Delete != tc.deletes || step.Content != "" {
			t.Errorf("%s: ends twice: %+v", name, step)
		}
	}
	// Somebody deletes the Pod, such as a drain of its node.
	for name, change := range map[string]func(*Observed){"served": func(*Observed) {},
		"not known": func(w *Observed) { w.Guest = nil }} {
		w := ofBackup()
		w.runPod(t)
		w.Pod.DeletionTimestamp = ptr.To(metav1.NewTime(now))
		w.plan(t)
		w.endPod(`{"volumes":2,"unread":0}`)
		change(w)
		w.plan(t)
		if read := conditions.Find(w.Export.Status.Conditions, exportv1.ConditionBackupRead); read == nil ||
			read.Status != corev1.ConditionTrue {
			t.Errorf("%s: what was read is lost: %+v", name, read)
		}
	}
}
