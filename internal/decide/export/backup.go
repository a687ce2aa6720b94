// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package export

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	exportapi "github.com/vireo-project/vireo/api/export"
	exportv1 "github.com/vireo-project/vireo/api/export/v1"
	"github.com/vireo-project/vireo/internal/conditions"
	"github.com/vireo-project/vireo/internal/decide/backup"
	backupplan "github.com/vireo-project/vireo/internal/decide/backup/plan"
	"github.com/vireo-project/vireo/internal/exporter/content"
	"github.com/vireo-project/vireo/internal/launcherpod/podstate"
	"github.com/vireo-project/vireo/internal/wire/agentapi"
)

// StopDeadline is the deadline in seconds of a Pod that is to end. The kubelet ends it, and the Pod stays, with what it
// reports.
const StopDeadline = 1

// backupSource returns the disks of a backup that is pulled.
func (o *Observed) backupSource() source {
	namespace, name := o.Export.Namespace, o.Export.Spec.Source.Name
	s := source{watched: true}
	b := o.Backup
	if b == nil {
		s.wait(exportapi.InitializingReason, "VirtualMachineBackup %s/%s not found", namespace, name)
		s.empty = true
		return s
	}
	if !metav1.IsControlledBy(o.Export, b) {
		s.wait(exportapi.InitializingReason,
			"VirtualMachineBackup %s/%s is exported by nothing but the export that is created for it if its mode is Pull",
			namespace, name)
		return s
	}
	s.pulled = true
	_, s.ends = backupplan.PullEnds(b, o.Now)
	s.ends = s.ends || backupplan.Ended(b)
	switch {
	case s.ends:
		s.wait(exportapi.InitializingReason, "VirtualMachineBackup %s/%s ends", namespace, name)
	case !o.isServed():
		s.wait(exportapi.InitializingReason, "The disks of VirtualMachineBackup %s/%s cannot be read yet", namespace, name)
		s.watched = false // the cache may lack what the backup's reconciler has read
	case o.Config.AgentCA == "":
		s.wait(exportapi.InitializingReason, "There is no authority for the certificates of agents yet")
		s.watched = false
	default:
		s.backup = o.servedBackup()
	}
	return s
}

// isServed reports whether the guest's QEMU serves the disks of the backup.
func (o *Observed) isServed() bool {
	if o.Guest == nil || o.Guest.Status.NodeName == "" || o.Backup.Status == nil ||
		len(o.Backup.Status.IncludedVolumes) == 0 {
		return false
	}
	record := backup.RecordOf(&o.Guest.Status)
	return record.ID == string(o.Backup.UID) && record.Pull && record.Stage == backup.Running
}

// servedBackup returns what the exporter serves.
func (o *Observed) servedBackup() *content.Backup {
	served := &content.Backup{Client: agentapi.BackupName(o.Guest.Status.NodeName), CA: o.Config.AgentCA}
	for i := range o.Backup.Status.IncludedVolumes {
		served.Volumes = append(served.Volumes, o.Backup.Status.IncludedVolumes[i].VolumeName)
	}
	if record := backup.RecordOf(&o.Guest.Status); record.Incremental() {
		served.Changes = backup.DirtyContext
	}
	return served
}

// forgotRanges follows the volumes that were not read if the exporter has forgotten what was read of one.
const forgotRanges = ". Or they were, and too many separate ranges were read to remember all of them: " +
	"read the data that a page of the map lists before the next page"

// isPulled reports whether the export lives as long as its backup, which deletes it.
func (o *Observed) isPulled() bool {
	return o.Backup != nil && metav1.IsControlledBy(o.Export, o.Backup) && !backupplan.Ended(o.Backup)
}

// endPull ends the Pod of a backup that is not pulled any more, so that it reports what was read. A Pod that has not
// started is deleted.
func (o *Observed) endPull(step *Step, s *source) {
	switch {
	case o.Pod == nil || !o.ownsPod():
		o.setRead(s, "There is no exporter that could report what was read")
	case o.takeReport(s):
	case podstate.Terminal(o.Pod) || o.Pod.Status.Phase == corev1.PodPending:
		o.setRead(s, "The exporter has ended without a report of what was read")
		step.Delete = o.Pod.DeletionTimestamp == nil
	case !o.stops():
		step.Stop = true
	}
}

// takeReport sets the condition BackupRead to what an exporter that has ended reports, and returns false if there is no
// report.
func (o *Observed) takeReport(s *source) bool {
	at := slices.IndexFunc(o.Pod.Status.ContainerStatuses,
		func(c corev1.ContainerStatus) bool { return c.Name == Container })
	if at < 0 || o.Pod.Status.ContainerStatuses[at].State.Terminated == nil {
		return false
	}
	report, err := content.ParseReport(o.Pod.Status.ContainerStatuses[at].State.Terminated.Message)
	switch {
	case err != nil:
		return false
	case report.Unread > 0:
		problem := fmt.Sprintf("%d of %d volumes were not read completely: %s", report.Unread, report.Volumes,
			strings.Join(report.Names, ", "))
		if report.Forgot {
			problem += forgotRanges
		}
		o.setRead(s, problem)
	case o.Backup.Status == nil || report.Volumes != len(o.Backup.Status.IncludedVolumes):
		o.setRead(s, "The exporter had other volumes than the backup")
	default:
		o.setRead(s, "")
	}
	return true
}

// setRead sets the condition BackupRead. Without a problem, all was read.
func (o *Observed) setRead(s *source, problem string) {
	s.condition = condition(exportv1.ConditionBackupRead, corev1.ConditionFalse, exportapi.NotAllVolumesReadReason,
		problem)
	if problem == "" {
		s.condition = condition(exportv1.ConditionBackupRead, corev1.ConditionTrue, exportapi.AllVolumesReadReason, "")
	}
}

// keepRead decides about the condition BackupRead: once all was read, that stays so, since the backup stays the same.
// That something was not read is only true until another exporter starts.
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
		out = append(out, exportv1.VirtualMachineExportBackup{Name: name,
			Endpoints: []exportv1.VirtualMachineExportBackupEndpoint{
				{Endpoint: exportv1.Data, Url: base + content.DataPath(name)},
				{Endpoint: exportv1.Map, Url: base + content.MapPath(name)},
			}})
	}
	return out
}
