// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package jobs

import (
	"context"
	"fmt"
	"net"
	"path"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/jobs/pull"
	"github.com/vireo-project/vireo/internal/decide/backup"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// diskServer has what pulls need, in which QEMU serves the disks of a running guest.
type diskServer interface {
	// MakeBackupDir creates the directory of a backup as a pool.
	MakeBackupDir(ctx context.Context, pool, dir string) error
	// Pool returns a directory of the Pod as a storage pool.
	Pool(ctx context.Context, name, dir string) (*hypervisor.Pool, error)
	// DiskSizes returns the sizes of the disks of a running domain in bytes, by the name of their target.
	DiskSizes(ctx context.Context, name string) (map[string]uint64, error)
	// OpenPull connects to the socket at which QEMU serves the disks of a backup.
	OpenPull(ctx context.Context, id string) (net.Conn, error)
}

// isForeign reports whether the active job is certainly not that of a record.
func isForeign(job backup.Job, record backup.Record) bool {
	want := ""
	if record.Pull {
		want = backupSocket(record.ID)
	}
	return job.State == backup.JobActive && job.Socket != want
}

// backupSocket is the path of the socket of a pull in the launcher Pod.
func backupSocket(id string) string {
	return path.Join(launcherpod.SocketsDir, launcherpod.BackupSocketName(id))
}

// observeRoom finds out whether a running pull still has enough room. If libvirt does not report it, the pull goes on:
// there was enough room when it started.
func (b *backupRun) observeRoom(ctx context.Context) {
	b.view.NoRoom = ""
	intent, record := b.view.Intent, b.view.Record
	if b.view.Job.State != backup.JobActive || b.view.Foreign || record.Stage != backup.Running || !record.Pull ||
		intent == nil ||
		intent.ID != record.ID {
		return
	}
	if scratch, err := b.scratch(ctx); err == nil {
		b.view.NoRoom = scratch.Shortage()
	}
}

// refuseScratch returns why a pull cannot begin, or "". It creates the directory of the scratch files.
func (b *backupRun) refuseScratch(ctx context.Context) (problem string, err error) {
	intent := b.view.Intent
	if err := b.guest.MakeBackupDir(ctx, backupPool(intent.ID), backupDir(intent)); err != nil {
		return "", err
	}
	scratch, err := b.scratch(ctx)
	if err != nil {
		return "", err
	}
	return scratch.Refusal(), nil
}

// scratch returns the room for the scratch files.
func (b *backupRun) scratch(ctx context.Context) (*backup.Scratch, error) {
	intent, s := b.view.Intent, b.scope
	sizes, err := b.guest.DiskSizes(ctx, s.DomainName())
	if err != nil {
		return nil, err
	}
	found, err := b.guest.Pool(ctx, backupPool(intent.ID), backupDir(intent))
	if err != nil {
		return nil, err
	}
	scratch := &backup.Scratch{Capacity: found.Capacity, Available: found.Available}
	if target := vmistatus.FindUtility(&s.VMI.Spec, intent.UtilityVolume); target != nil {
		scratch.Claim = target.ClaimName
	}
	for _, volume := range intent.Volumes {
		bytes, known := sizes[s.DiskTarget(volume)]
		if !known {
			return nil, fmt.Errorf("libvirt does not report the size of the disk of volume %s", volume)
		}
		used := uint64(0)
		if file := found.Find(path.Base(intent.File(volume))); file != nil {
			used = file.Allocation
		}
		scratch.Add(backup.ScratchBytes(bytes), used)
	}
	return scratch, nil
}

// servePull connects the guest's QEMU to the exporter while a pull is served and has one, and to nothing otherwise.
func (s *Guest) servePull(guest diskServer) {
	if s.Pod == nil {
		return
	}
	if s.VMI != nil && s.Domain.Active() {
		intent, record := backup.IntentOf(&s.VMI.Status), s.backupRecord()
		if intent != nil && record.Serves(intent) {
			s.jobs.pulls.Serve(s.Pod.UID, pull.Pull{
				ID: record.ID, Exporter: intent.Exporter,
				Open: func(ctx context.Context) (net.Conn, error) { return guest.OpenPull(ctx, record.ID) },
			})
			return
		}
	}
	s.jobs.pulls.End(s.Pod.UID)
}
