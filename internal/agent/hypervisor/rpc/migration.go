// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"context"
	"errors"
	"fmt"
	"time"

	"libvirt.org/go/libvirt"
	"libvirt.org/go/libvirtxml"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/migrate/qemutls"
	"github.com/vireo-project/vireo/internal/decide/migration/protocol"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// LiveXML returns the running domain in the form that another libvirtd accepts.
func (c *Conn) LiveXML(ctx context.Context, domain string) (*libvirtxml.Domain, error) {
	ctx, end := c.startConversation(ctx)
	defer end()
	var text string
	err := c.onDomain(ctx, domain, "describe the guest", func(d *libvirt.Domain) (err error) {
		text, err = c.describe(ctx, d, libvirt.DOMAIN_XML_MIGRATABLE|libvirt.DOMAIN_XML_SECURE)
		return err
	})
	if err != nil {
		return nil, err
	}
	return readDomain(ctx, text)
}

// SourceState returns the state of a migration's source. It reads the job first: without a job, no request of an
// earlier process can change the state that is read after it.
func (c *Conn) SourceState(ctx context.Context, domain string) (hypervisor.SourceState, error) {
	var found hypervisor.SourceState
	err := c.call(ctx, queryTimeout, "read the state of the source's guest", func(l *libvirt.Connect) error {
		return withDomain(l, domain, func(d *libvirt.Domain) error {
			info, err := jobOf(d)
			if err != nil {
				return err
			}
			found.Job = info != nil
			state, reason, err := d.GetState()
			if err != nil {
				return err
			}
			found.Domain = sourceState(state, reason)
			return nil
		})
	})
	return found, err
}

// sourceState translates libvirt's state and its reason.
func sourceState(state libvirt.DomainState, reason int) protocol.SourceDomain {
	switch state {
	case libvirt.DOMAIN_SHUTOFF:
		if libvirt.DomainShutoffReason(reason) == libvirt.DOMAIN_SHUTOFF_MIGRATED {
			return protocol.SourceMigrated
		}
		return protocol.SourceEnded
	case libvirt.DOMAIN_CRASHED:
		return protocol.SourceEnded
	case libvirt.DOMAIN_PAUSED:
		switch libvirt.DomainPausedReason(reason) {
		case libvirt.DOMAIN_PAUSED_MIGRATION:
			return protocol.SourceSuspended
		case libvirt.DOMAIN_PAUSED_POSTCOPY:
			return protocol.SourcePostCopy
		case libvirt.DOMAIN_PAUSED_POSTCOPY_FAILED:
			return protocol.SourceMigrated
		}
	}
	// The source has the guest, and may run it. That also applies to one that a user paused, that QEMU stopped, or that
	// libvirt could not resume after a migration.
	return protocol.SourceRunning
}

// TargetState returns the state of a migration's target.
func (c *Conn) TargetState(ctx context.Context, domain string) (protocol.TargetDomain, error) {
	found := protocol.TargetAbsent
	err := c.call(ctx, queryTimeout, "read the state of the target's guest", func(l *libvirt.Connect) error {
		return withDomain(l, domain, func(d *libvirt.Domain) error {
			state, reason, err := d.GetState()
			if err != nil {
				return err
			}
			found = targetState(state, reason)
			return nil
		})
	})
	if errors.Is(err, hypervisor.ErrNoDomain) {
		return protocol.TargetAbsent, nil
	}
	return found, err
}

// targetState translates libvirt's state and its reason. Once libvirt reports the guest as paused by a user, it keeps
// the guest even if the connection that prepared it ends. A state counts as running only if the guest must have run to
// be in it. Shutting down is no such state: libvirt also reports it for a QEMU that is ended while it receives the
// guest.
func targetState(state libvirt.DomainState, reason int) protocol.TargetDomain {
	switch state {
	case libvirt.DOMAIN_RUNNING, libvirt.DOMAIN_BLOCKED, libvirt.DOMAIN_PMSUSPENDED:
		return protocol.TargetRunning
	case libvirt.DOMAIN_PAUSED:
		switch libvirt.DomainPausedReason(reason) {
		case libvirt.DOMAIN_PAUSED_USER:
			return protocol.TargetComplete
		case libvirt.DOMAIN_PAUSED_IOERROR, libvirt.DOMAIN_PAUSED_WATCHDOG, libvirt.DOMAIN_PAUSED_CRASHED,
			libvirt.DOMAIN_PAUSED_SAVE,
			libvirt.DOMAIN_PAUSED_DUMP, libvirt.DOMAIN_PAUSED_SNAPSHOT, libvirt.DOMAIN_PAUSED_POSTCOPY_FAILED:
			return protocol.TargetRunning
		case libvirt.DOMAIN_PAUSED_SHUTTING_DOWN:
			return protocol.TargetAbsent
		default:
			return protocol.TargetReceiving
		}
	default:
		return protocol.TargetAbsent
	}
}

// ResumedSince is when libvirt last reported that the guest was resumed. It is zero if that was before this connection
// was made.
func (c *Conn) ResumedSince() time.Time {
	if at := c.resumed.Load(); at != 0 {
		return time.Unix(0, at)
	}
	return time.Time{}
}

// ResumeSource resumes a guest that was suspended for a migration. It fails with ErrNotRunning while libvirt has a
// migration job.
func (c *Conn) ResumeSource(ctx context.Context, domain string) error {
	return c.onDomain(ctx, domain, "resume the source's guest", func(d *libvirt.Domain) error {
		info, err := jobOf(d)
		if err != nil {
			return err
		}
		if info != nil {
			return fmt.Errorf("%w: libvirt has a migration job", hypervisor.ErrNotRunning)
		}
		state, _, err := d.GetState()
		if err != nil || state == libvirt.DOMAIN_RUNNING {
			return err
		}
		return d.Resume()
	})
}

// ResumeTarget resumes a migration's complete target.
func (c *Conn) ResumeTarget(ctx context.Context, domain string) error {
	return c.onDomain(ctx, domain, "run the target's guest", func(d *libvirt.Domain) error {
		state, _, err := d.GetState()
		if err != nil || state == libvirt.DOMAIN_RUNNING {
			return err
		}
		return d.Resume()
	})
}

// TransferProgress returns the progress of libvirt's migration job, or nil if there is none.
func (c *Conn) TransferProgress(ctx context.Context, domain string) (*hypervisor.TransferProgress, error) {
	var progress *hypervisor.TransferProgress
	err := c.onDomain(ctx, domain, "read the progress of the migration", func(d *libvirt.Domain) error {
		info, err := jobOf(d)
		if err != nil || info == nil {
			return err
		}
		progress = progressOf(info)
		state, reason, err := d.GetState()
		progress.PostCopy = state == libvirt.DOMAIN_PAUSED &&
			libvirt.DomainPausedReason(reason) == libvirt.DOMAIN_PAUSED_POSTCOPY
		return err
	})
	return progress, err
}

// jobOf returns the migration job of a domain, or nil.
func jobOf(d *libvirt.Domain) (*libvirt.DomainJobInfo, error) {
	info, err := d.GetJobStats(0)
	if isCode(err, libvirt.ERR_OPERATION_INVALID) {
		// The domain is not running.
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if info.Type == libvirt.DOMAIN_JOB_NONE || isBackup(info) {
		return nil, nil
	}
	return info, nil
}

func progressOf(info *libvirt.DomainJobInfo) *hypervisor.TransferProgress {
	return &hypervisor.TransferProgress{
		Elapsed: milliseconds(info.TimeElapsed), Downtime: milliseconds(info.Downtime), Setup: milliseconds(info.SetupTime),
		Memory: hypervisor.TransferAmount{
			Total: info.MemTotal, Processed: info.MemProcessed, Remaining: info.MemRemaining, BytesPerSecond: info.MemBps,
		},
		Disk: hypervisor.TransferAmount{
			Total: info.DiskTotal, Processed: info.DiskProcessed, Remaining: info.DiskRemaining, BytesPerSecond: info.DiskBps,
		},
		DirtyBytesPerSecond: info.MemDirtyRate * info.MemPageSize, Iteration: info.MemIteration,
		Throttle: info.AutoConvergeThrottle,
	}
}

// milliseconds bounds what a launcher reports.
func milliseconds(n uint64) time.Duration {
	return time.Duration(min(n, uint64(1<<40))) * time.Millisecond
}

// CancelTransfer ends a migration job. It succeeds if there is none.
func (c *Conn) CancelTransfer(ctx context.Context, domain string) error {
	return c.onDomain(ctx, domain, "cancel the migration", func(d *libvirt.Domain) error {
		if info, err := jobOf(d); err != nil || info == nil {
			return err
		}
		err := d.AbortJob()
		if isCode(err, libvirt.ERR_OPERATION_INVALID) {
			if info, jobErr := jobOf(d); jobErr == nil && info == nil {
				return nil
			}
		}
		return err
	})
}

// StartPostCopy lets the target's guest run with what was transferred, and fetch the rest. It cannot be undone.
func (c *Conn) StartPostCopy(ctx context.Context, domain string) error {
	// First: the call may fail although libvirt starts the post-copy.
	c.postCopy.Store(true)
	return c.onDomain(ctx, domain, "begin the post-copy",
		func(d *libvirt.Domain) error { return d.MigrateStartPostCopy(0) })
}

// SetMaxDowntime sets how long the guest may be paused at the end of the transfer.
func (c *Conn) SetMaxDowntime(ctx context.Context, domain string, limit time.Duration) error {
	return c.onDomain(ctx, domain, "limit the downtime", func(d *libvirt.Domain) error {
		return d.MigrateSetMaxDowntime(uint64(max(limit.Milliseconds(), 1)), 0)
	})
}

// SetTransferBandwidth limits how many bytes are sent per second; 0 removes the limit.
func (c *Conn) SetTransferBandwidth(ctx context.Context, domain string, bytesPerSecond uint64) error {
	limit := unlimited
	if bytesPerSecond > 0 {
		limit = mebibytes(bytesPerSecond)
	}
	return c.onDomain(ctx, domain, "limit the bandwidth",
		func(d *libvirt.Domain) error { return d.MigrateSetMaxSpeed(limit, 0) })
}

// unlimited is the highest bandwidth that libvirt accepts, in MiB/s (QEMU_DOMAIN_MIG_BANDWIDTH_MAX,
// src/qemu/qemu_domain.h).
const unlimited = uint64(1<<63-1) / mebibyte

// keyMode allows only libvirtd and QEMU to read a key.
const keyMode = "0600"

// file is a file in the directory of a migration's certificates.
type file struct {
	name    string
	content []byte
}

// tlsFiles returns the files with the names that QEMU expects. Source: qemu include/crypto/tlscredsx509.h.
func tlsFiles(files qemutls.Files) []file {
	if files.Server {
		return []file{
			{"ca-cert.pem", files.CA}, {"server-cert.pem", files.Certificate}, {"server-key.pem", files.Key},
			{"dh-params.pem", []byte(qemutls.DHParameters)},
		}
	}
	return []file{{"ca-cert.pem", files.CA}, {"client-cert.pem", files.Certificate}, {"client-key.pem", files.Key}}
}

// PutMigrationTLS writes the certificates of a migration for the Pod's QEMU, in place of any others. libvirtd writes
// them: the agent opens no path that the Pod controls.
func (c *Conn) PutMigrationTLS(ctx context.Context, files qemutls.Files) error {
	if err := c.RemoveMigrationTLS(ctx); err != nil {
		return err
	}
	for _, f := range tlsFiles(files) {
		if err := c.createVolume(ctx, launcherpod.MigrationTLSPool, keyVolume(f)); err != nil {
			return err
		}
		if err := c.Upload(ctx, launcherpod.MigrationTLSPool, f.name, f.content); err != nil {
			return err
		}
	}
	return nil
}

// keyVolume describes a file that only libvirtd and QEMU can read.
func keyVolume(f file) *libvirtxml.StorageVolume {
	return &libvirtxml.StorageVolume{
		Name:     f.name,
		Capacity: &libvirtxml.StorageVolumeSize{Unit: "bytes", Value: uint64(len(f.content))},
		Target: &libvirtxml.StorageVolumeTarget{
			Format:      &libvirtxml.StorageVolumeTargetFormat{Type: "raw"},
			Permissions: &libvirtxml.StorageVolumeTargetPermissions{Mode: keyMode},
		},
	}
}

// RemoveMigrationTLS removes the certificates of a migration from the Pod.
func (c *Conn) RemoveMigrationTLS(ctx context.Context) error {
	return c.call(ctx, actTimeout, "remove a migration's certificates", func(l *libvirt.Connect) error {
		pool, err := ensurePool(l, launcherpod.MigrationTLSPool, launcherpod.MigrationTLSDir)
		if err != nil {
			return err
		}
		defer func() { _ = pool.Free() }()
		for _, side := range []bool{true, false} {
			for _, f := range tlsFiles(qemutls.Files{Server: side}) {
				if err := removeVolume(pool, f.name); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// removeVolume deletes a volume, if there is one.
func removeVolume(pool *libvirt.StoragePool, name string) error {
	volume, err := pool.LookupStorageVolByName(name)
	if err == nil {
		defer func() { _ = volume.Free() }()
		err = volume.Delete(libvirt.STORAGE_VOL_DELETE_NORMAL)
	}
	if isCode(err, libvirt.ERR_NO_STORAGE_VOL) {
		return nil
	}
	return err
}
