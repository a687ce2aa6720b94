// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package plan

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	backupapi "github.com/vireo-project/vireo/api/backup"
	"github.com/vireo-project/vireo/api/backup/v1alpha1"
	exportv1 "github.com/vireo-project/vireo/api/export/v1"
	"github.com/vireo-project/vireo/internal/conditions"
	"github.com/vireo-project/vireo/internal/decide/backup"
	"github.com/vireo-project/vireo/internal/exporter/content"
)

const (
	// reportWait is how long a pull that ends waits for what its exporter reports: the exporter's grace period, and time
	// for the kubelet.
	reportWait = 2 * time.Minute
	// foreignPoll is how often an export that does not belong to the backup is read again.
	foreignPoll = 30 * time.Second
)

// ownsExport reports whether the export is that of the backup.
func (p *planner) ownsExport() bool {
	return p.Export != nil && metav1.IsControlledBy(p.Export, p.Backup)
}

// pull has the disks exported that QEMU serves, until the backup is deleted or its time is over.
func (p *planner) pull() {
	if since, ends := PullEnds(p.Backup, p.Now); ends {
		p.endPull(since)
		return
	}
	p.waitFor(Expiry(p.Backup))
	switch why := p.ends(); {
	case why != "":
		p.progress(v1alpha1.ReasonAborting, why+p.silence())
	case p.intent == nil:
		p.progress(v1alpha1.ReasonPreparingExport, "The guest's VMI no longer has the request for the backup")
	case p.Export == nil:
		p.forgetEndpoints()
		p.progress(v1alpha1.ReasonPreparingExport, "The export of the backup is being created")
		p.step.Export = p.newExport()
	case !p.ownsExport():
		p.progress(v1alpha1.ReasonPreparingExport,
			fmt.Sprintf("VirtualMachineExport %s/%s exists and does not belong to the backup: delete or rename one of them",
				p.Export.Namespace, p.Export.Name))
		p.waitFor(p.Now.Add(foreignPoll))
	default:
		p.setEndpoints()
		if exporter := p.exporter(); exporter != p.intent.Exporter {
			p.step.Intent = p.intent
			p.step.Intent.Exporter = exporter
		}
	}
}

// newExport returns the export of the backup. It has the name of the backup, as in KubeVirt.
func (p *planner) newExport() *exportv1.VirtualMachineExport {
	b := p.Backup
	return &exportv1.VirtualMachineExport{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: b.Namespace, Name: b.Name,
			// The export does not block the deletion of the backup, which has a finalizer.
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: v1alpha1.GroupVersion.String(), Kind: "VirtualMachineBackup", Name: b.Name, UID: b.UID,
				Controller: ptr.To(true),
			}},
		},
		Spec: exportv1.VirtualMachineExportSpec{
			Source: corev1.TypedLocalObjectReference{APIGroup: ptr.To(backupapi.GroupName), Kind: "VirtualMachineBackup",
				Name: b.Name},
			TokenSecretRef: ptr.To(b.Spec.TokenSecretRef), TTLDuration: &metav1.Duration{Duration: Expiry(b).Sub(p.Now)},
		},
	}
}

// exporter returns the Pod to which the agent has to connect. It is zero while there is none.
func (p *planner) exporter() backup.Exporter {
	pod := p.ExportPod
	if pod == nil || pod.DeletionTimestamp != nil || pod.Status.Phase != corev1.PodRunning || pod.Status.PodIP == "" {
		return backup.Exporter{}
	}
	return backup.Exporter{
		IP: pod.Status.PodIP, Port: backup.ExporterPort, ServerName: content.ServerName(p.Export.Namespace, p.Export.Name),
		UID: string(pod.UID),
	}
}

// forgetEndpoints removes the addresses of an export that is gone.
func (p *planner) forgetEndpoints() {
	p.step.Status.EndpointCert, p.step.Status.ExportUID = nil, nil
	p.step.Status.IncludedVolumes = withoutEndpoints(p.step.Status.IncludedVolumes)
}

// setEndpoints copies the addresses of the export to the status: as in KubeVirt, those from outside of the cluster if
// there are any.
func (p *planner) setEndpoints() {
	status := p.Export.Status
	if status == nil || status.Phase != exportv1.Ready || status.Links == nil {
		message := "The export is being prepared"
		if status != nil {
			if ready := conditions.Find(status.Conditions, exportv1.ConditionReady); ready != nil && ready.Message != "" {
				message += ": " + ready.Message
			}
		}
		p.progress(v1alpha1.ReasonPreparingExport, message)
		return
	}
	link := status.Links.External
	if link == nil || link.Cert == "" || len(link.Backups) == 0 {
		link = status.Links.Internal
	}
	if link == nil {
		return
	}
	volumes := withoutEndpoints(p.step.Status.IncludedVolumes)
	for i := range volumes {
		for _, served := range link.Backups {
			if served.Name != volumes[i].VolumeName {
				continue
			}
			for _, endpoint := range served.Endpoints {
				switch endpoint.Endpoint {
				case exportv1.Data:
					volumes[i].DataEndpoint = endpoint.Url
				case exportv1.Map:
					volumes[i].MapEndpoint = endpoint.Url
				}
			}
		}
	}
	p.step.Status.IncludedVolumes, p.step.Status.EndpointCert, p.step.Status.ExportUID = volumes, ptr.To(link.Cert),
		ptr.To(p.Export.UID)
	p.progress(v1alpha1.ReasonExportReady, "The backup can be pulled")
}

// withoutEndpoints returns a copy of volumes without addresses.
func withoutEndpoints(volumes []v1alpha1.BackupVolumeInfo) []v1alpha1.BackupVolumeInfo {
	out := make([]v1alpha1.BackupVolumeInfo, 0, len(volumes))
	for _, v := range volumes {
		out = append(out, v1alpha1.BackupVolumeInfo{VolumeName: v.VolumeName, DiskTarget: v.DiskTarget})
	}
	return out
}

// endPull ends a pull once its exporter has reported what was read.
func (p *planner) endPull(since time.Time) {
	why := "The ttlDuration of the backup has expired"
	if p.Backup.DeletionTimestamp != nil {
		why = "The backup was deleted"
	}
	p.progress(v1alpha1.ReasonAborting, why+p.silence())
	if p.intent == nil || p.intent.Canceled {
		return // the agent reports when the job has ended
	}
	if _, _, known := p.read(); !known && p.Now.Before(since.Add(reportWait)) {
		p.waitFor(since.Add(reportWait))
		return
	}
	p.step.Intent = p.intent
	p.step.Intent.Canceled = true
}

// read reports whether clients have read all of a pull, and otherwise why not. It is not known until the exporter has
// ended.
func (p *planner) read() (all bool, why string, known bool) {
	if !p.ownsExport() {
		return false, "its export was deleted", true
	}
	if p.Export.Status != nil {
		if reported := conditions.Find(p.Export.Status.Conditions, exportv1.ConditionBackupRead); reported != nil {
			return reported.Status == corev1.ConditionTrue, reported.Message, true
		}
	}
	return false, "the exporter has not reported what was read", false
}

// unread returns why a pull does not count as a backup from which a later one can start, or nothing.
func (p *planner) unread() string {
	// A tracker that has the checkpoint got it when all had been read, even if the export is gone now.
	if !IsPull(p.Backup) || p.stored() {
		return ""
	}
	all, why, _ := p.read()
	if all {
		return ""
	}
	if p.Tracker != nil && p.created() != "" {
		return "The backup was not read completely, so that the next backup does not start from it: " + why
	}
	return "The backup was not read completely: " + why
}

// ending returns the reason of the condition Progressing after the job has ended.
func (p *planner) ending() string {
	if IsPull(p.Backup) {
		return v1alpha1.ReasonAborting
	}
	return v1alpha1.ReasonInitiated
}

// deleteExport deletes the export of a backup that has ended, and returns false if there is none.
func (p *planner) deleteExport() bool {
	p.step.DeleteExport = p.ownsExport() && p.Export.DeletionTimestamp == nil
	return p.step.DeleteExport
}
