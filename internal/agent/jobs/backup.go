// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package jobs

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/log"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/phase"
	"github.com/vireo-project/vireo/internal/decide/backup"
	"github.com/vireo-project/vireo/internal/domain"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

const (
	// backupPoll is the time between two reads of a job's state. No event is registered that reports its end.
	backupPoll = 5 * time.Second
	// maxBackupActions is how many actions a reconciliation may take, so that a launcher whose responses make no sense
	// is not called for ever. It takes five to abort the job of one backup, to record that, and to request and begin
	// the next one and record how it ended.
	maxBackupActions = 6
	// maxUnread is for how long it is tried to read whether the images exist.
	maxUnread = 3 * time.Minute
	// problemUnread is why a backup of which libvirt reports success has failed nevertheless.
	problemUnread = "libvirt reports that the backup has succeeded, but it is unknown whether its images are there: "
	// maxTracked is how many volumes are reported as tracked: as many as a backup can have.
	maxTracked = 256
)

// diskBackuper backs up the disks of a running guest.
type diskBackuper interface {
	// RecordBackup writes the record of a backup to the running domain's metadata.
	RecordBackup(ctx context.Context, domain string, record backup.Record) error
	// BackupJob returns the backup job of a running domain, or its result.
	BackupJob(ctx context.Context, domain string) (backup.Job, error)
	// DiscardJobResult makes libvirt forget the result of the last job.
	DiscardJobResult(ctx context.Context, domain string) error
	// BeginBackup creates a directory as a pool and begins to copy disks to images in it, or to serve them. It fails if
	// an image exists.
	BeginBackup(ctx context.Context, domain string, request hypervisor.BackupRequest) error
	// Checkpoints returns the checkpoints of a running domain, with the targets of their disks.
	Checkpoints(ctx context.Context, domain string) ([]hypervisor.Checkpoint, error)
	// RedefineCheckpoint makes libvirt know a checkpoint that only QEMU knows. It fails if QEMU does not know it
	// either.
	RedefineCheckpoint(ctx context.Context, domain string, checkpoint hypervisor.Checkpoint) error
	// DeleteCheckpoint deletes a checkpoint. It does nothing if there is none.
	DeleteCheckpoint(ctx context.Context, domain, name string) error
	// HasImages reports whether all files exist in the directory of a backup.
	HasImages(ctx context.Context, pool, dir string, files []string) (bool, error)
	// AbortBackup aborts a backup. It does nothing if there is none.
	AbortBackup(ctx context.Context, domain string) error
	// ForgetPool ends a pool, and leaves its files.
	ForgetPool(ctx context.Context, name string) error
	diskServer
}

// BackUpDisks takes the next actions for the intent of a backup in the VMI's status. QEMU copies the disks meanwhile.
func (s *Guest) BackUpDisks(ctx context.Context, guest diskBackuper) error {
	// Whatever happens here: a pull that has ended is not served any more.
	defer s.servePull(guest)
	if s.VMI == nil || !s.Domain.Active() {
		return nil
	}
	b := &backupRun{scope: s, guest: guest}
	b.view.Intent, b.view.Record = backup.IntentOf(&s.VMI.Status), s.backupRecord()
	if !b.isOpen() {
		return nil
	}
	b.view.Blocked = vmistatus.Migrating(&s.VMI.Status) || !isUtilityMounted(s.VMI, b.view.Intent)
	for range maxBackupActions {
		acted, err := b.act(ctx)
		if err != nil {
			s.RequeueAfter(backupPoll)
			return phase.FromConnection(err)
		}
		if !acted {
			break
		}
	}
	if b.isOpen() {
		s.RequeueAfter(backupPoll)
	}
	return nil
}

// backupState is what this process knows about the guest's last backup.
type backupState struct {
	// record is the record that was written last.
	record backup.Record
	// imagesUnread is since when it could not be read whether the images of that backup exist, or zero.
	imagesUnread time.Time
	// once is the ID of a backup that this process has requested, as long as no request to begin it was lost.
	once string
}

// backupRun is the backup in one reconciliation.
type backupRun struct {
	scope *Guest
	guest diskBackuper
	view  backup.View
}

// isOpen reports whether there is something to do: a backup is wanted or has not ended. After one that failed, a late
// job may have to be aborted until virt-controller removes the intent.
func (b *backupRun) isOpen() bool {
	intent, record := b.view.Intent, b.view.Record
	return !record.Ended() || intent != nil && (intent.ID != record.ID || record.Stage != backup.Succeeded)
}

// act takes the next action. It returns false if there is none.
func (b *backupRun) act(ctx context.Context) (acted bool, err error) {
	name := b.scope.DomainName()
	if err := b.observe(ctx); err != nil {
		return false, err
	}
	action, next := backup.Decide(b.view)
	switch action {
	case backup.Request:
		if err := b.guest.DiscardJobResult(ctx, name); err != nil {
			return false, err
		}
		err := b.write(ctx, next)
		if err == nil {
			b.scope.state.backup.once = next.ID
		}
		return true, err
	case backup.Write:
		return true, b.write(ctx, next)
	case backup.Begin:
		return true, b.begin(ctx, next)
	case backup.Abort:
		return true, b.guest.AbortBackup(ctx, name)
	default:
		return false, nil
	}
}

// observe reads the job and, if it has succeeded, whether the images exist.
func (b *backupRun) observe(ctx context.Context) error {
	b.view.Now = b.scope.Now
	var err error
	if b.view.Job, err = b.guest.BackupJob(ctx, b.scope.DomainName()); err != nil {
		return err
	}
	b.view.Images = false
	intent, record := b.view.Intent, b.view.Record
	b.view.Foreign = isForeign(b.view.Job, record)
	b.observeRoom(ctx)
	if intent != nil && intent.ID != record.ID && intent.Checkpoint != "" {
		if err := b.observeChanges(ctx); err != nil {
			return err
		}
		if err := b.redefine(ctx, intent); err != nil {
			return err
		}
	}
	if b.view.Job.State != backup.JobSucceeded || record.Pull || record.Ended() || intent == nil ||
		intent.ID != record.ID {
		return nil
	}
	var files []string
	for _, volume := range intent.Volumes {
		files = append(files, path.Base(intent.File(volume)))
	}
	return b.observeImages(ctx, files)
}

// observeImages reads whether the images exist. As long as that is not known, the backup has not failed. That is
// limited, because meanwhile the claim stays attached and the guest does not migrate.
func (b *backupRun) observeImages(ctx context.Context, files []string) (err error) {
	unread := &b.scope.state.backup.imagesUnread
	b.view.Images, err = b.guest.HasImages(ctx, backupPool(b.view.Record.ID), backupDir(b.view.Intent), files)
	switch {
	case err == nil:
		*unread = time.Time{}
		return nil
	case errors.Is(err, hypervisor.ErrUnreachable):
		return err
	case unread.IsZero():
		*unread = b.scope.Now
		return err
	case b.scope.Now.Sub(*unread) < maxUnread:
		return err
	default:
		b.view.Job = backup.Job{State: backup.JobFailed,
			Problem: hypervisor.CleanLine(problemUnread+err.Error(), hypervisor.MaxBackupProblem)}
		return nil
	}
}

// observeChanges reads which disks are tracked, and since when.
func (b *backupRun) observeChanges(ctx context.Context) error {
	b.view.Changes = backup.Changes{Tracked: trackedVolumes(b.scope.Domain), Checkpoints: map[string][]string{}}
	list, err := b.guest.Checkpoints(ctx, b.scope.DomainName())
	if err != nil {
		return err
	}
	for _, checkpoint := range list {
		var volumes []string
		for _, volume := range b.view.Intent.Volumes {
			if slices.Contains(checkpoint.Targets, b.scope.DiskTarget(volume)) {
				volumes = append(volumes, volume)
			}
		}
		b.view.Changes.Checkpoints[checkpoint.Name] = volumes
	}
	return nil
}

// redefine makes libvirt know the checkpoint that a backup starts from, if only QEMU knows it, as after a migration.
// QEMU only has a bitmap of that name if it has tracked the changes since that checkpoint.
func (b *backupRun) redefine(ctx context.Context, intent *backup.Intent) error {
	if _, known := b.view.Changes.Checkpoints[intent.Since]; known || intent.Since == "" || b.view.Blocked {
		return nil
	}
	checkpoint := hypervisor.Checkpoint{Name: intent.Since}
	for _, volume := range intent.Volumes {
		target := b.scope.DiskTarget(volume)
		if target == "" || !slices.Contains(b.view.Changes.Tracked, volume) {
			return nil
		}
		checkpoint.Targets = append(checkpoint.Targets, target)
	}
	err := b.guest.RedefineCheckpoint(ctx, b.scope.DomainName(), checkpoint)
	switch {
	case err == nil:
		return b.observeChanges(ctx)
	case errors.Is(err, hypervisor.ErrUnreachable), errors.Is(err, hypervisor.ErrNoDomain):
		return err
	default:
		log.FromContext(ctx).V(1).Info("QEMU does not have a checkpoint", "checkpoint", intent.Since, "error", err.Error())
		return nil
	}
}

func (b *backupRun) write(ctx context.Context, record backup.Record) error {
	s := b.scope
	if err := b.guest.RecordBackup(ctx, s.DomainName(), record); err != nil {
		return err
	}
	b.view.Record, b.view.Problem, s.state.backup.record, s.state.backup.imagesUnread = record, "", record, time.Time{}
	if record.Ended() {
		if err := b.guest.ForgetPool(ctx, backupPool(record.ID)); err != nil {
			log.FromContext(ctx).Error(err, "Cannot end the pool of a backup, which is harmless", "backup", record.ID)
		}
	}
	return nil
}

// begin begins the job. That libvirt accepts it is recorded at once: the job may end before its state is read.
func (b *backupRun) begin(ctx context.Context, record backup.Record) error {
	intent := b.view.Intent
	images, problem := b.images()
	if problem != "" {
		b.view.Problem = problem
		return nil
	}
	b.view.Only = false
	if record.Pull {
		var err error
		if problem, err = b.refuseScratch(ctx); err != nil {
			return b.refused(err)
		}
		if problem != "" {
			b.view.Problem = problem
			return nil
		}
	}
	err := b.deleteObsolete(ctx, record)
	if err == nil {
		request := hypervisor.BackupRequest{
			Pool: backupPool(record.ID), Dir: backupDir(intent), Images: images, Checkpoint: record.Checkpoint,
			Since: record.Since,
		}
		if record.Pull {
			request.Socket = backupSocket(record.ID)
		}
		err = b.guest.BeginBackup(ctx, b.scope.DomainName(), request)
	}
	if err != nil {
		b.view.Only = b.scope.state.backup.once == record.ID
		return b.refused(err)
	}
	record.Stage = backup.Running
	return b.write(ctx, record)
}

// refused notes why libvirt refuses to begin. It returns the error if the guest cannot be reached: then libvirt may
// begin nevertheless.
func (b *backupRun) refused(err error) error {
	if errors.Is(err, hypervisor.ErrUnreachable) || errors.Is(err, hypervisor.ErrNoDomain) {
		b.scope.state.backup.once = ""
		return err
	}
	b.view.Problem = hypervisor.CleanLine(err.Error(), hypervisor.MaxBackupProblem)
	return nil
}

// deleteObsolete deletes the checkpoints from which no backup will start any more: each costs the guest memory, and
// time with each write. One that cannot be deleted is harmless.
func (b *backupRun) deleteObsolete(ctx context.Context, record backup.Record) error {
	if record.Checkpoint == "" {
		return nil
	}
	if err := b.observeChanges(ctx); err != nil {
		return err
	}
	var failed []string
	var reason error
	for _, name := range b.view.Intent.Obsolete(record, b.view.Changes) {
		err := b.guest.DeleteCheckpoint(ctx, b.scope.DomainName(), name)
		if errors.Is(err, hypervisor.ErrUnreachable) {
			return err
		}
		if err != nil {
			failed, reason = append(failed, name), err
		}
	}
	if len(failed) > 0 {
		log.FromContext(ctx).Error(reason, "Cannot delete checkpoints that no backup needs any more", "last",
			failed[len(failed)-1], "checkpoints", len(failed))
	}
	return nil
}

// images returns the images of the disks, or why there is none for one of them.
func (b *backupRun) images() (images []hypervisor.BackupImage, problem string) {
	intent := b.view.Intent
	for _, volume := range intent.Volumes {
		target := b.scope.DiskTarget(volume)
		if target == "" {
			return nil, fmt.Sprintf("the guest has no disk of the volume %s", volume)
		}
		// A backup with a checkpoint has only disks that are tracked.
		images = append(images, hypervisor.BackupImage{
			Target: target, File: path.Base(intent.File(volume)), Export: volume, Tracked: b.view.Record.Checkpoint != "",
		})
	}
	return images, ""
}

// backupPool is the name of the pool of a backup's directory.
func backupPool(id string) string { return "backup-" + id }

// backupDir is the directory of a backup in the launcher Pod.
func backupDir(intent *backup.Intent) string {
	return path.Join(launcherpod.UtilityVolumeDir(intent.UtilityVolume), path.Clean("/"+intent.Directory))
}

// trackedVolumes returns the volumes of a running domain whose disks have an overlay.
func trackedVolumes(d *hypervisor.Domain) []string {
	var names []string
	if d == nil || d.XML == nil || d.XML.Devices == nil {
		return nil
	}
	for i := range d.XML.Devices.Disks {
		disk := &d.XML.Devices.Disks[i]
		if disk.Alias == nil || !domain.IsTracked(disk) || len(names) == maxTracked {
			continue
		}
		// A hostile launcher may have chosen the alias.
		if name, isVolume := strings.CutPrefix(disk.Alias.Name, domain.DiskAlias("")); isVolume &&
			len(validation.IsDNS1123Label(name)) == 0 {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// SetTracked copies the volumes whose changed blocks are tracked to the status.
func (s *Guest) SetTracked() {
	s.VMI.Status.TrackedVolumes = trackedVolumes(s.Domain)
}

// isUtilityMounted reports whether the volume for the images is in the launcher Pod.
func isUtilityMounted(vmi *v1.VirtualMachineInstance, intent *backup.Intent) bool {
	return intent != nil && slices.ContainsFunc(vmi.Status.VolumeStatus, func(v v1.VolumeStatus) bool {
		return v.Name == intent.UtilityVolume && v.Phase == v1.HotplugVolumeMounted
	})
}

// BacksUpTo reports whether a backup to a volume is requested, or runs.
func (s *Guest) BacksUpTo(volume string) bool {
	intent, record := backup.IntentOf(&s.VMI.Status), s.backupRecord()
	return s.Domain.Active() && intent != nil && intent.UtilityVolume == volume &&
		(intent.ID != record.ID || !record.Ended())
}

// backupRecord returns the record of the last backup. What this process has written last does not depend on what the
// launcher kept.
func (s *Guest) backupRecord() backup.Record {
	if s.state.backup.record.ID != "" {
		return s.state.backup.record
	}
	if noted, err := s.Domain.DiskBackup(); err == nil && noted != nil {
		return *noted
	}
	record := backup.RecordOf(&s.VMI.Status)
	if !record.Ended() {
		// The launcher has removed or damaged the record. Only its job can still say how the backup ends.
		record.Stage = backup.Running
	}
	return record
}

// setDiskBackup copies the record of the last backup to the status. It never removes it: without a record, the guest
// might be backed up again for the same intent.
func (s *Guest) setDiskBackup() {
	if record := s.backupRecord(); s.Domain.Active() && record.ID != "" {
		s.VMI.Status.DiskBackupRecord = record.Status()
	}
}
