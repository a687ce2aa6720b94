// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package plan

import (
	"cmp"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/vireo-project/vireo/api/backup/v1alpha1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/decide/backup"
)

// maxKept is how many checkpoints a guest keeps. Each takes memory, and time with each write.
const maxKept = 16

// track requests a checkpoint for the tracker's next backup, and that this one starts from the tracker's latest
// checkpoint. A guest whose changed blocks are not tracked can have none.
func (p *planner) track(name string) {
	if p.Tracker == nil || len(p.VMI.Status.TrackedVolumes) == 0 {
		return
	}
	intent := p.step.Intent
	intent.Checkpoint = name
	latest := p.latest()
	if latest != "" && !p.Backup.Spec.ForceFullBackup {
		intent.Since = latest
	}
	// The tracker's own first: without it, its next backup would be a full one if this one fails.
	if latest != "" {
		intent.Kept = append(intent.Kept, latest)
	}
	for _, other := range p.Checkpoints {
		if len(intent.Kept) < maxKept && !slices.Contains(intent.Kept, other) {
			intent.Kept = append(intent.Kept, other)
		}
	}
}

// Checkpoints returns the latest checkpoints of the trackers of a VMI's VM, the newest one first: if there are too
// many, it keeps the others. Those from before this guest are not among them.
func Checkpoints(trackers []v1alpha1.VirtualMachineBackupTracker, vmi *v1.VirtualMachineInstance) []string {
	var found []*v1alpha1.BackupCheckpoint
	for i := range trackers {
		status := trackers[i].Status
		if trackers[i].Spec.Source.Name == vmi.Name && status != nil && status.LatestCheckpoint != nil &&
			status.LatestCheckpoint.Name != "" &&
			!isOfEarlierGuest(status.LatestCheckpoint, vmi) {
			found = append(found, status.LatestCheckpoint)
		}
	}
	slices.SortFunc(found, func(a, b *v1alpha1.BackupCheckpoint) int {
		return cmp.Or(createdAt(b).Compare(createdAt(a)), cmp.Compare(a.Name, b.Name))
	})
	names := make([]string, 0, len(found))
	for _, checkpoint := range found {
		names = append(names, checkpoint.Name)
	}
	return slices.Compact(names)
}

// isOfEarlierGuest reports whether a checkpoint was created before a VMI, and so has ended with the QEMU of an earlier
// one.
func isOfEarlierGuest(checkpoint *v1alpha1.BackupCheckpoint, vmi *v1.VirtualMachineInstance) bool {
	return checkpoint.CreationTime != nil && checkpoint.CreationTime.Before(&vmi.CreationTimestamp)
}

// LostCheckpoint returns the name of a tracker's checkpoint if the running guest cannot have it, because it is that of
// an earlier one.
func LostCheckpoint(tracker *v1alpha1.VirtualMachineBackupTracker, vmi *v1.VirtualMachineInstance) string {
	status := tracker.Status
	if vmi.Status.Phase != v1.Running || status == nil || status.LatestCheckpoint == nil ||
		!isOfEarlierGuest(status.LatestCheckpoint, vmi) {
		return ""
	}
	return status.LatestCheckpoint.Name
}

func createdAt(checkpoint *v1alpha1.BackupCheckpoint) time.Time {
	if checkpoint.CreationTime == nil {
		return time.Time{}
	}
	return checkpoint.CreationTime.Time
}

// latest returns the name of the tracker's checkpoint, or nothing.
func (p *planner) latest() string {
	if p.Tracker == nil || p.Tracker.Status == nil || p.Tracker.Status.LatestCheckpoint == nil {
		return ""
	}
	return p.Tracker.Status.LatestCheckpoint.Name
}

// setType reports what kind of backup the agent is making, as soon as that is known.
func (p *planner) setType() {
	if p.record.ID == "" {
		return
	}
	p.step.Status.Type = v1alpha1.Full
	if p.record.Incremental() {
		p.step.Status.Type = v1alpha1.Incremental
	}
	if name := p.created(); name != "" {
		p.step.Status.CheckpointName = ptr.To(name)
	}
}

// created returns the name of the checkpoint that the agent has created with the backup, or nothing. It is only the one
// that was requested.
func (p *planner) created() string {
	if p.intent == nil || p.intent.Checkpoint != p.record.Checkpoint {
		return ""
	}
	return p.record.Checkpoint
}

// nextCheckpoint returns the checkpoint that is to become the tracker's, or nil. An incremental backup only continues
// the backups of its tracker: if the tracker was replaced meanwhile, it is not known which backups the new one's user
// has. It may be one of another VM.
func (p *planner) nextCheckpoint() *v1alpha1.BackupCheckpoint {
	latest := p.latest()
	created := p.created()
	if p.unread() != "" || p.Tracker == nil || p.Tracker.Spec.Source.Name != p.VMI.Name || created == "" ||
		latest == created ||
		p.record.Incremental() && latest != p.record.Since {
		return nil
	}
	return &v1alpha1.BackupCheckpoint{
		Name: created, CreationTime: ptr.To(metav1.NewTime(p.record.StartedAt)),
		Volumes: withoutEndpoints(p.step.Status.IncludedVolumes),
	}
}

// stored reports whether the backup has succeeded and the tracker has its checkpoint.
func (p *planner) stored() bool {
	return p.record.Stage == backup.Succeeded && p.created() != "" && p.latest() == p.created()
}

// whyFull returns why a backup of a tracker is a full one.
func (p *planner) whyFull() string {
	switch {
	case p.record.FullBecause != "":
		return p.record.FullBecause
	case p.Backup.Spec.ForceFullBackup:
		return "forceFullBackup is set"
	case p.record.Checkpoint == "":
		return "changed blocks of the running guest are not tracked, as status.changedBlockTracking of the VM reports"
	default:
		return "the tracker had no checkpoint of this run of the guest"
	}
}
