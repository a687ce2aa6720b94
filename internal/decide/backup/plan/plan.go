// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package plan decides what virt-controller does next for a VirtualMachineBackup. It is pure: Next depends only on what
// was observed, and each step can be repeated. docs/adr/0090
package plan

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vireo-project/vireo/api/backup/v1alpha1"
	exportv1 "github.com/vireo-project/vireo/api/export/v1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/decide/backup"
	"github.com/vireo-project/vireo/internal/decide/snapshot/freeze"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// freezeLimit is how long the guest may be frozen for a backup: until libvirt has begun the job.
const freezeLimit = time.Minute

// detaching is what a backup waits for at its end.
const detaching = "The claim is being detached"

// Observed is what decides about a backup. The VMI is read from the API server, because a stale one may lack an intent.
type Observed struct {
	// Now is the time.
	Now time.Time
	// Backup is the backup.
	Backup *v1alpha1.VirtualMachineBackup
	// Tracker is the source of the backup if that is a tracker and exists. It is read from the API server.
	Tracker *v1alpha1.VirtualMachineBackupTracker
	// Checkpoints are those of all trackers of the VM, as Checkpoints returns them. They are only needed before the backup
	// starts.
	Checkpoints []string
	// VMI is the VMI that has something of the backup, or else the VM's, or nil. One that has ended does not count, nor
	// one that the VM does not control and that has nothing of the backup.
	VMI *v1.VirtualMachineInstance
	// NoVM reports whether the source is a VM that does not exist, or a tracker of one. It only matters without a VMI.
	NoVM bool
	// Claim is the claim that the backup is written to, or nil.
	Claim *corev1.PersistentVolumeClaim
	// Export is the VirtualMachineExport with the name of a backup that is pulled, or nil, and ExportPod is its Pod, or
	// nil.
	Export    *exportv1.VirtualMachineExport
	ExportPod *corev1.Pod
	// MigrationPending reports whether the VMI has a migration that has not ended. It is only needed before the backup
	// starts.
	MigrationPending bool
	// MigrationUrgent reports whether one that has not ended has the priority system-critical, such as that of a drain. It
	// ends the backup.
	MigrationUrgent bool
}

// Step is what to do next. At most one of the changes is set; after it, Next is called again with what is observed
// then.
type Step struct {
	// Status is the status to write. It is written before the change.
	Status v1alpha1.VirtualMachineBackupStatus
	// AddVolume is added to the VMI's utility volumes, RemoveVolume is the name of one that is removed.
	AddVolume    *v1.UtilityVolume
	RemoveVolume string
	// Freeze and Intent are written to the VMI's status, with its resource version as precondition. ClearFreeze and
	// ClearIntent remove them.
	Freeze      *freeze.Intent
	ClearFreeze bool
	Intent      *backup.Intent
	ClearIntent bool
	// Checkpoint is written to the status of the tracker: later backups start from it.
	Checkpoint *v1alpha1.BackupCheckpoint
	// Export is created, and DeleteExport deletes the existing one.
	Export       *exportv1.VirtualMachineExport
	DeleteExport bool
	// Pending is what keeps something of an ended backup in the VMI, or nothing. No condition says it any more.
	Pending string
	// Done means that nothing of the backup is left in the VMI. The finalizer can be removed.
	Done bool
	// After is when to call Next again even if nothing changes, or 0.
	After time.Duration
}

// planner computes one step.
type planner struct {
	Observed
	step Step
	// id identifies the backup in the VMI, volume is the name of the utility volume there.
	id, volume string
	// intent is the backup's intent in the VMI, or nil, and record the agent's record of it, or an empty one.
	intent *backup.Intent
	record backup.Record
}

// Next returns what to do next.
func Next(o Observed) Step {
	p := &planner{Observed: o, id: string(o.Backup.UID), volume: VolumeName(o.Backup)}
	if o.Backup.Status != nil {
		p.step.Status = *o.Backup.Status.DeepCopy()
	}
	if o.VMI != nil {
		if intent := backup.IntentOf(&o.VMI.Status); intent != nil && intent.ID == p.id {
			p.intent = intent
		}
		if record := backup.RecordOf(&o.VMI.Status); record.ID == p.id {
			p.record = record
		}
	}
	switch {
	case p.ended():
		p.cleanUp()
	case o.Backup.DeletionTimestamp != nil && !p.isServed():
		p.abort()
	case p.intent == nil && p.record.ID == "" && !p.initiated():
		p.prepare()
	case p.intent == nil && p.record.ID == "":
		p.fail(v1alpha1.ReasonSourceLost, "The VM stopped while it was backed up")
	default:
		p.run()
	}
	return p.step
}

// CleanUp returns what to do next about what a backup has left in a VMI that was removed by force, without its
// finalizer. Only its UID is known. It is canceled like a deleted backup, a pulled one too: there is no exporter to
// wait for, and no client that gets the checkpoint. The step has no status.
func CleanUp(vmi *v1.VirtualMachineInstance, uid string, now time.Time) Step {
	gone := &v1alpha1.VirtualMachineBackup{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid),
		DeletionTimestamp: &metav1.Time{Time: now}}}
	step := Next(Observed{Now: now, Backup: gone, VMI: vmi})
	step.Status = v1alpha1.VirtualMachineBackupStatus{}
	return step
}

// isServed reports whether the backup is a pull that has begun. Its deletion ends it successfully.
func (p *planner) isServed() bool {
	return IsPull(p.Backup) && p.record.Pull && p.record.Begun()
}

// abort cancels a backup that is being deleted.
func (p *planner) abort() {
	switch {
	case p.VMI == nil:
		p.step.Done = true
	case p.stored():
		// The next backup starts from this one, so it has to exist.
		p.complete()
	case p.intent != nil && !p.intent.Canceled && (p.record.ID == "" || !p.record.Ended()):
		p.progress(v1alpha1.ReasonAborting, "The backup was deleted"+p.silence())
		p.step.Intent = p.intent
		p.step.Intent.Canceled = true
	case p.intent != nil && (p.record.ID == "" || !p.record.Ended()):
		// The agent reports when the job has ended.
		p.progress(v1alpha1.ReasonAborting, "The backup was deleted"+p.silence())
	default:
		p.cleanUp()
	}
}

// cleanUp removes what is left of a backup in the VMI.
func (p *planner) cleanUp() {
	if p.deleteExport() {
		return
	}
	if p.VMI == nil {
		p.step.Done = true
		return
	}
	if !p.freezeEnded() {
		return
	}
	if !p.detached() {
		p.step.Pending = p.pending()
		return
	}
	p.step.ClearIntent = p.intent != nil
	p.step.Done = !p.step.ClearIntent
}

// freezeEnded cancels a freeze that this backup has requested and that is not needed any more, and removes it when it
// has ended. It returns true once there is nothing to do.
func (p *planner) freezeEnded() bool {
	view := p.freezeView(freeze.NoSnapshot)
	view.Abandoned = true
	if view.Intent == nil || view.Intent.ID != p.id {
		return true
	}
	if action, intent := freeze.DecideController(view); action == freeze.WriteIntent {
		p.step.Freeze = intent
		return false
	}
	p.step.ClearFreeze = view.MayClear()
	return !p.step.ClearFreeze
}

// detached detaches the claim, and returns true once it is detached.
func (p *planner) detached() bool {
	if vmistatus.FindUtility(&p.VMI.Spec, p.volume) != nil {
		p.step.RemoveVolume = p.volume
		return false
	}
	return vmistatus.FindVolume(&p.VMI.Status, p.volume) == nil
}

// claimProblem returns why the claim is not attached or detached yet, to be appended to a message that says so, or
// nothing.
func (p *planner) claimProblem() string {
	problem := ""
	if status := vmistatus.FindVolume(&p.VMI.Status, p.volume); status != nil && status.Message != "" &&
		status.Reason != vmistatus.ReasonVolumeMounted {
		problem = ": " + status.Message
	}
	// What prevents the agent from satisfying the spec is mostly the same problem.
	if problem == "" || vmistatus.IsConditionTrue(&p.VMI.Status, v1.VirtualMachineInstanceNodeUnresponsive) {
		problem += p.silence()
	}
	return problem
}

// pending returns what keeps the claim of an ended backup attached, or nothing.
func (p *planner) pending() string {
	status := vmistatus.FindVolume(&p.VMI.Status, p.volume)
	if p.step.RemoveVolume != "" || status == nil || status.Reason != vmistatus.ReasonHotplugFailed && p.silence() == "" {
		return ""
	}
	return detaching + p.claimProblem()
}

// silence returns why the guest's node may not act, to be appended to a message that says what is expected of it, or
// nothing.
func (p *planner) silence() string {
	status := &p.VMI.Status
	silent := vmistatus.FindCondition(status, v1.VirtualMachineInstanceNodeUnresponsive)
	if silent == nil || silent.Status != corev1.ConditionTrue {
		silent = vmistatus.FindCondition(status, v1.VirtualMachineInstanceSynchronized)
		if silent == nil || silent.Status != corev1.ConditionFalse {
			return ""
		}
	}
	if silent.Message == "" {
		return ""
	}
	return ". " + silent.Message
}

// freezeView returns what decides about the freeze, for the state of the backup.
func (p *planner) freezeView(state freeze.Snapshots) freeze.ControllerView {
	return freeze.ControllerView{
		Now: p.Now, ID: p.id, Limit: freezeLimit, Snapshots: state,
		Intent: freeze.IntentOf(&p.VMI.Status), Record: freeze.RecordOf(&p.VMI.Status),
	}
}

// waitFor makes sure that Next is called at a time.
func (p *planner) waitFor(at time.Time) {
	if after := max(at.Sub(p.Now), time.Millisecond); p.step.After == 0 || after < p.step.After {
		p.step.After = after
	}
}

// run waits until the backup has begun, the guest is thawed, the backup has ended and the claim is detached, in this
// order.
func (p *planner) run() {
	p.setType()
	p.include()
	if p.cancel() {
		return
	}
	if !p.thawed() {
		p.copying("The backup is being started")
		return
	}
	if p.isServed() && !p.record.Ended() {
		p.pull()
		return
	}
	if p.record.ID == "" || !p.record.Ended() {
		p.copying("The disks are being copied")
		return
	}
	if !p.detached() {
		// What was written may still be in the node's memory.
		p.progress(p.ending(), detaching+p.claimProblem())
		return
	}
	if p.record.Stage != backup.Succeeded {
		p.fail(v1alpha1.ReasonFailed, p.failure()+p.record.Problem)
		return
	}
	if checkpoint := p.nextCheckpoint(); checkpoint != nil {
		// Before the backup is complete: a client that waits for that may start the next one.
		p.progress(p.ending(), "The checkpoint is being stored in the tracker")
		p.step.Checkpoint = checkpoint
		return
	}
	p.complete()
}

// cancel cancels a backup that is not to go on, and returns true if that has to be written now. The agent then reports
// how it has ended.
func (p *planner) cancel() bool {
	if p.intent == nil || p.intent.Canceled || p.ends() == "" {
		return false
	}
	p.copying("")
	p.step.Intent = p.intent
	p.step.Intent.Canceled = true
	return true
}

// ends returns why a backup is not to go on, or nothing. A pull that is served ends with its time in another way: with
// what its exporter reports. A migration does not wait for that.
func (p *planner) ends() string {
	over := p.isOver()
	switch {
	case p.record.ID != "" && p.record.Ended(), over && p.record.Begun():
		return ""
	case over:
		return "The backup did not start before its ttlDuration expired"
	case p.MigrationUrgent || p.preempted():
		return endedByMigration
	case IsPull(p.Backup) && !p.record.Begun():
		p.waitFor(Expiry(p.Backup))
	}
	return ""
}

// isOver reports whether the backup is a pull that was deleted or whose time is over.
func (p *planner) isOver() bool {
	_, over := PullEnds(p.Backup, p.Now)
	return over && IsPull(p.Backup)
}

// preempted reports whether the backup was canceled for a migration: neither a user nor its time has ended it.
func (p *planner) preempted() bool {
	return p.intent != nil && p.intent.Canceled && p.Backup.DeletionTimestamp == nil && !p.isOver()
}

// copying reports that the agent makes the backup, or why it is to end that.
func (p *planner) copying(message string) {
	if why := p.ends(); why != "" {
		p.progress(v1alpha1.ReasonAborting, why+p.silence())
		return
	}
	p.progress(v1alpha1.ReasonInitiated, message+p.silence())
}

// failure returns the beginning of the reason why there is no backup.
func (p *planner) failure() string {
	if p.preempted() {
		return endedByMigration + ": "
	}
	if IsPull(p.Backup) {
		return "The disks could not be read until the end: "
	}
	return "The disks were not copied: "
}

// thawed decides about the freeze while the backup begins. It returns true once the guest need not be frozen any more,
// and then reports whether it was.
func (p *planner) thawed() bool {
	state := freeze.SomeSnapshots
	if p.record.Begun() {
		state = freeze.AllSnapshots
	}
	view := p.freezeView(state)
	if view.Intent == nil || view.Intent.ID != p.id {
		if state == freeze.AllSnapshots {
			p.setUnfrozen()
		}
		return state == freeze.AllSnapshots
	}
	action, intent := freeze.DecideController(view)
	switch action {
	case freeze.WriteIntent:
		p.step.Freeze = intent
	case freeze.Done:
		p.setQuiesced(view)
		p.step.ClearFreeze = view.MayClear() // in the step after the status is written
		return !p.step.ClearFreeze
	default:
		if p.Now.Before(view.Intent.Deadline) {
			p.waitFor(view.Intent.Deadline)
		}
		return false
	}
	return false
}

// include lists the disks that are in the backup.
func (p *planner) include() {
	if p.intent == nil || len(p.step.Status.IncludedVolumes) > 0 {
		return
	}
	for _, name := range p.intent.Volumes {
		info := v1alpha1.BackupVolumeInfo{VolumeName: name}
		for i := range p.VMI.Status.VolumeStatus {
			if p.VMI.Status.VolumeStatus[i].Name == name {
				info.DiskTarget = p.VMI.Status.VolumeStatus[i].Target
			}
		}
		p.step.Status.IncludedVolumes = append(p.step.Status.IncludedVolumes, info)
	}
}
