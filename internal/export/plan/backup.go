// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package plan

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vireo-project/vireo/api/export"
	exportv1 "github.com/vireo-project/vireo/api/export/v1"
	"github.com/vireo-project/vireo/internal/agentapi"
	"github.com/vireo-project/vireo/internal/backup"
	backupplan "github.com/vireo-project/vireo/internal/backup/plan"
	"github.com/vireo-project/vireo/internal/conditions"
	"github.com/vireo-project/vireo/internal/export/content"
	"github.com/vireo-project/vireo/internal/launcherpod/podstate"
)

// StopDeadline is the deadline in seconds of a Pod that is to end. The kubelet ends it, and the Pod stays, with what it reports.
const StopDeadline = 1

// backupSource returns the disks of a backup that is pulled.
func (w *World) backupSource() source {
	namespace, name := w.Export.Namespace, w.Export.Spec.Source.Name
	s := source{watched: true}
	b := w.Backup
	if b == nil {
		s.wait(export.InitializingReason, "VirtualMachineBackup %s/%s not found", namespace, name)
		s.empty = true
		return s
	}
	if !metav1.IsControlledBy(w.Export, b) {
		s.wait(export.InitializingReason, "VirtualMachineBackup %s/%s is exported by nothing but the export that is created for it if its mode is Pull", namespace, name)
		return s
	}
	s.pulled = true
	_, s.ends = backupplan.PullEnds(b, w.Now)
	s.ends = s.ends || backupplan.Ended(b)
	switch {
	case s.ends:
		s.wait(export.InitializingReason, "VirtualMachineBackup %s/%s ends", namespace, name)
	case !w.isServed():
		s.wait(export.InitializingReason, "The disks of VirtualMachineBackup %s/%s cannot be read yet", namespace, name)
		s.watched = false // the cache may lack what the backup's reconciler has read
	case w.Config.AgentCA == "":
		s.wait(export.InitializingReason, "There is no authority for the certificates of agents yet")
		s.watched = false
	default:
		s.backup = w.servedBackup()
	}
	return s
}

// isServed reports whether the guest's QEMU serves the disks of the backup.
func (w *World) isServed() bool {
	if w.Guest == nil || w.Guest.Status.NodeName == "" || w.Backup.Status == nil || len(w.Backup.Status.IncludedVolumes) == 0 {
		return false
	}
	record := backup.RecordOf(&w.Guest.Status)
	return record.ID == string(w.Backup.UID) && record.Pull && record.Stage == backup.Running
}

// servedBackup returns what the exporter serves.
func (w *World) servedBackup() *content.Backup {
	served := &content.Backup{Client: agentapi.BackupName(w.Guest.Status.NodeName), CA: w.Config.AgentCA}
	for i := range w.Backup.Status.IncludedVolumes {
		served.Volumes = append(served.Volumes, w.Backup.Status.IncludedVolumes[i].VolumeName)
	}
	if record := backup.RecordOf(&w.Guest.Status); record.Incremental() {
		served.Changes = backup.DirtyContext
	}
	return served
}

// forgotRanges follows the volumes that were not read if the exporter has forgotten what was read of one.
const forgotRanges = ". Or they were, and too many separate ranges were read to remember all of them: " +
	"read the data that a page of the map lists before the next page"

// isPulled reports whether the export lives as long as its backup, which deletes it.
func (w *World) isPulled() bool {
	return w.Backup != nil && metav1.IsControlledBy(w.Export, w.Backup) && !backupplan.Ended(w.Backup)
}

// endPull ends the Pod of a backup that is not pulled any more, so that it reports what was read. A Pod that has not started is deleted.
func (w *World) endPull(step *Step, s *source) {
	switch {
	case w.Pod == nil || !w.ownsPod():
		w.setRead(s, "There is no exporter that could report what was read")
	case w.takeReport(s):
	case podstate.Terminal(w.Pod) || w.Pod.Status.Phase == corev1.PodPending:
		w.setRead(s, "The exporter has ended without a report of what was read")
		step.Delete = w.Pod.DeletionTimestamp == nil
	case !w.stops():
		step.Stop = true
	}
}

// takeReport sets the condition BackupRead to what an exporter that has ended reports, and returns false if there is no report.
func (w *World) takeReport(s *source) bool {
	at := slices.IndexFunc(w.Pod.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool { return c.Name == Container })
	if at < 0 || w.Pod.Status.ContainerStatuses[at].State.Terminated == nil {
		return false
	}
	report, err := content.ParseReport(w.Pod.Status.ContainerStatuses[at].State.Terminated.Message)
	switch {
	case err != nil:
		return false
	case report.Unread > 0:
		problem := fmt.Sprintf("%d of %d volumes were not read completely: %s", report.Unread, report.Volumes, strings.Join(report.Names, ", "))
		if report.Forgot {
			problem += forgotRanges
		}
		w.setRead(s, problem)
	case w.Backup.Status == nil || report.Volumes != len(w.Backup.Status.IncludedVolumes):
		w.setRead(s, "The exporter had other volumes than the backup")
	default:
		w.setRead(s, "")
	}
	return true
}

// setRead sets the condition BackupRead. Without a problem, all was read.
func (w *World) setRead(s *source, problem string) {
	s.condition = condition(exportv1.ConditionBackupRead, corev1.ConditionFalse, export.NotAllVolumesReadReason, problem)
	if problem == "" {
		s.condition = condition(exportv1.ConditionBackupRead, corev1.ConditionTrue, export.AllVolumesReadReason, "")
	}
}

// keepRead decides about the condition BackupRead: once all was read, that stays so, since the backup stays the same. That something was
// not read is only true until another exporter starts.
func (s *source) keepRead(status *exportv1.VirtualMachineExportStatus) {
	known := conditions.Find(status.Conditions, exportv1.ConditionBackupRead)
	switch {
	case !s.pulled || known == nil:
	case known.Status == corev1.ConditionTrue:
		s.condition = nil
	case s.condition == nil:
		conditions.Remove(&status.Conditions, exportv1.ConditionBackupRead)
	}
}

// isOtherBackup reports whether the Pod serves something else than the backup.
func (s *source) isOtherBackup(served *content.Content) bool {
	if s.backup == nil || served.Backup == nil {
		return s.backup != nil || served.Backup != nil
	}
	return !slices.Equal(s.backup.Volumes, served.Backup.Volumes) || s.backup.Changes != served.Backup.Changes
}

// backups returns the addresses of the volumes of a backup.
func (s *source) backups(base string) (out []exportv1.VirtualMachineExportBackup) {
	if s.backup == nil {
		return nil
	}
	for _, name := range s.backup.Volumes {
		out = append(out, exportv1.VirtualMachineExportBackup{Name: name, Endpoints: []exportv1.VirtualMachineExportBackupEndpoint{
			{Endpoint: exportv1.Data, Url: base + content.DataPath(name)}, {Endpoint: exportv1.Map, Url: base + content.MapPath(name)},
		}})
	}
	return out
}
