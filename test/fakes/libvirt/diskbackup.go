// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package libvirt

import (
	"context"
	"fmt"
	"maps"
	"net"
	"path"
	"slices"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/decide/backup"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// backingUp is a launcher's state of backups.
type backingUp struct {
	// job is the running job, or the result of the last one.
	job backup.Job
	// images are the paths of the images, and open those that the running job writes.
	images map[string]bool
	open   []string
	begun  int
	// checkpoints are the guest's, by name, and requests the backups that were begun.
	checkpoints map[string]hypervisor.Checkpoint
	// bitmaps are the checkpoints that only QEMU knows, and broken is one with a broken bitmap.
	bitmaps  map[string]hypervisor.Checkpoint
	broken   string
	requests []hypervisor.BackupRequest
	// free is the free space for scratch files, if it was set, and dialed how often a client has connected to the disks of
	// a pull.
	free   *uint64
	dialed int
}

// SetFreeSpace sets the free space of the file systems of all pools.
func (l *Launcher) SetFreeSpace(bytes uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.backups.free = &bytes
}

// EndBackup ends the running backup: with success if the problem is empty.
func (l *Launcher) EndBackup(problem string) {
	l.change(func() { l.endBackup(problem) })
}

// endBackup is EndBackup. libvirt reports each pull that has ended as a success. The caller holds mu.
func (l *Launcher) endBackup(problem string) {
	if l.backups.job.Socket != "" {
		for _, scratch := range l.backups.open {
			delete(l.backups.images, scratch)
		}
		problem = ""
	}
	l.backups.job = backup.Job{State: backup.JobSucceeded}
	if problem != "" {
		l.backups.job = backup.Job{State: backup.JobFailed, Problem: problem}
		for _, image := range l.backups.open {
			delete(l.backups.images, image)
		}
	}
	l.backups.open = nil
}

// ForgetBackup makes libvirt know neither the running backup nor its result.
func (l *Launcher) ForgetBackup() {
	l.change(func() { l.backups.job = backup.Job{} })
}

// BackupsBegun returns how many backups were begun.
func (l *Launcher) BackupsBegun() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.backups.begun
}

// Images returns the paths of the images of backups.
func (l *Launcher) Images() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Keys(l.backups.images))
}

// LastBackup returns the backup that was begun last.
func (l *Launcher) LastBackup() hypervisor.BackupRequest {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.backups.requests) == 0 {
		return hypervisor.BackupRequest{}
	}
	return l.backups.requests[len(l.backups.requests)-1]
}

// ForgetCheckpoints makes the guest lose its checkpoints, as with a new QEMU.
func (l *Launcher) ForgetCheckpoints() {
	l.change(func() { l.backups.bitmaps, l.backups.checkpoints = nil, nil })
}

// KeepBitmaps makes libvirt lose the guest's checkpoints, and QEMU keep them, as after a migration.
func (l *Launcher) KeepBitmaps() {
	l.change(func() { l.backups.bitmaps, l.backups.checkpoints = l.backups.checkpoints, nil })
}

// RedefineCheckpoint makes a checkpoint that QEMU has kept known again.
func (l *Launcher) RedefineCheckpoint(ctx context.Context, name string, checkpoint hypervisor.Checkpoint) error {
	if err := l.running(ctx, "checkpoints", name); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	kept, found := l.backups.bitmaps[checkpoint.Name]
	if !found || slices.ContainsFunc(checkpoint.Targets,
		func(target string) bool { return !slices.Contains(kept.Targets, target) }) {
		return fmt.Errorf("checkpoint inconsistent: missing or broken bitmap %q", checkpoint.Name)
	}
	if l.backups.checkpoints == nil {
		l.backups.checkpoints = map[string]hypervisor.Checkpoint{}
	}
	l.backups.checkpoints[checkpoint.Name] = checkpoint
	return nil
}

// BreakBitmap breaks the bitmap of a checkpoint.
func (l *Launcher) BreakBitmap(checkpoint string) {
	l.change(func() { l.backups.broken = checkpoint })
}

// Checkpoints returns the guest's checkpoints.
func (l *Launcher) Checkpoints(ctx context.Context, name string) ([]hypervisor.Checkpoint, error) {
	if err := l.running(ctx, "checkpoints", name); err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Values(l.backups.checkpoints)), nil
}

// DeleteCheckpoint deletes a checkpoint, if there is one.
func (l *Launcher) DeleteCheckpoint(ctx context.Context, name, checkpoint string) error {
	if err := l.running(ctx, "checkpoints", name); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.backups.checkpoints, checkpoint)
	delete(l.backups.bitmaps, checkpoint)
	return nil
}

// RecordBackup writes the record to the domain's metadata.
func (l *Launcher) RecordBackup(ctx context.Context, name string, record backup.Record) error {
	if err := l.running(ctx, "record", name); err != nil {
		return err
	}
	l.setNote(hypervisor.DiskBackupURI,
		prefixed(hypervisor.DiskBackupNote(record), hypervisor.DiskBackupPrefix, hypervisor.DiskBackupURI))
	return nil
}

// BackupJob returns the job or its result.
func (l *Launcher) BackupJob(ctx context.Context, name string) (backup.Job, error) {
	if err := l.running(ctx, "domain", name); err != nil {
		return backup.Job{}, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.backups.job, nil
}

// DiscardJobResult forgets a result.
func (l *Launcher) DiscardJobResult(ctx context.Context, name string) error {
	if err := l.running(ctx, "domain", name); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.backups.job.State != backup.JobActive {
		l.backups.job = backup.Job{}
	}
	return nil
}

// BeginBackup begins a job.
func (l *Launcher) BeginBackup(ctx context.Context, name string, r hypervisor.BackupRequest) error {
	if err := l.running(ctx, "backup", name); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.backups.images == nil {
		l.backups.images = map[string]bool{}
	}
	for _, image := range r.Images {
		file := r.File(image)
		l.backups.images[file] = true
		l.backups.open = append(l.backups.open, file)
	}
	if r.Since != "" && r.Since == l.backups.broken {
		return fmt.Errorf("checkpoint inconsistent: missing or broken bitmap %q", r.Since)
	}
	if _, found := l.backups.checkpoints[r.Since]; r.Since != "" && !found {
		return fmt.Errorf("checkpoint %q not found", r.Since)
	}
	if r.Checkpoint != "" {
		created := hypervisor.Checkpoint{Name: r.Checkpoint}
		for _, image := range r.Images {
			if image.Tracked {
				created.Targets = append(created.Targets, image.Target)
			}
		}
		if l.backups.checkpoints == nil {
			l.backups.checkpoints = map[string]hypervisor.Checkpoint{}
		}
		l.backups.checkpoints[r.Checkpoint] = created
	}
	l.backups.requests = append(l.backups.requests, r)
	l.backups.job = backup.Job{State: backup.JobActive, Socket: r.Socket}
	l.backups.begun++
	return l.respond("backup")
}

// MakeBackupDir does nothing: directories are not kept.
func (l *Launcher) MakeBackupDir(ctx context.Context, _, _ string) error { return l.enter(ctx, "pool") }

// OpenPull connects to the disks of a pull, which are no NBD server: it writes back what it reads.
func (l *Launcher) OpenPull(ctx context.Context, id string) (net.Conn, error) {
	if err := l.enter(ctx, "pull"); err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.backups.job.State != backup.JobActive ||
		l.backups.job.Socket != path.Join(launcherpod.SocketsDir, launcherpod.BackupSocketName(id)) {
		return nil, fmt.Errorf("%w with the backup %s", hypervisor.ErrNotRunning, id)
	}
	l.backups.dialed++
	ours, theirs := net.Pipe()
	go echo(theirs)
	return ours, nil
}

// PullsOpened returns how often a client has connected to the disks of a pull.
func (l *Launcher) PullsOpened() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.backups.dialed
}

// HasImages reports whether all images exist.
func (l *Launcher) HasImages(ctx context.Context, _, dir string, files []string) (bool, error) {
	if err := l.enter(ctx, "pool"); err != nil {
		return false, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, file := range files {
		if !l.backups.images[path.Join(dir, file)] {
			return false, nil
		}
	}
	return true, nil
}

// AbortBackup aborts the job, if there is one.
func (l *Launcher) AbortBackup(ctx context.Context, name string) error {
	if err := l.running(ctx, "domain", name); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.backups.job.State == backup.JobActive {
		l.endBackup("the backup was aborted")
	}
	return nil
}

// ForgetPool does nothing: pools of backups are not kept.
func (l *Launcher) ForgetPool(ctx context.Context, _ string) error { return l.enter(ctx, "pool") }
