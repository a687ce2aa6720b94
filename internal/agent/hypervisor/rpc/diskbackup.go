// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"context"
	"fmt"
	"net"

	"libvirt.org/go/libvirt"
	"libvirt.org/go/libvirtxml"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/decide/backup"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// RecordBackup writes the record of a backup to the running domain's metadata.
func (c *Conn) RecordBackup(ctx context.Context, domain string, record backup.Record) error {
	return c.setMetadata(ctx, domain, "write the backup to the domain's metadata", hypervisor.DiskBackupNote(record),
		hypervisor.DiskBackupPrefix, hypervisor.DiskBackupURI)
}

// BackupJob returns the backup job of a running domain, or its result.
func (c *Conn) BackupJob(ctx context.Context, domain string) (backup.Job, error) {
	ctx, end := c.startConversation(ctx)
	defer end()
	var job backup.Job
	err := c.onDomain(ctx, domain, "read the state of the backup", func(d *libvirt.Domain) error {
		// The job is read before the result: one that ends in between has a result.
		active, err := d.GetJobStats(0)
		if err != nil {
			return err
		}
		if active.Type != libvirt.DOMAIN_JOB_NONE {
			job.State = backup.JobOther
			if isBackup(active) {
				job, err = activeBackup(ctx, d)
			}
			return err
		}
		result, err := d.GetJobStats(libvirt.DOMAIN_JOB_STATS_COMPLETED | libvirt.DOMAIN_JOB_STATS_KEEP_COMPLETED)
		if err != nil {
			return err
		}
		job = jobResult(result)
		return nil
	})
	return job, err
}

// activeBackup returns the running backup of a domain.
func activeBackup(ctx context.Context, d *libvirt.Domain) (backup.Job, error) {
	text, err := d.BackupGetXMLDesc(0)
	if isCode(err, libvirt.ERR_NO_DOMAIN_BACKUP) {
		return backup.Job{State: backup.JobOther}, nil // It is about to begin, or has just ended.
	}
	if err != nil {
		return backup.Job{}, err
	}
	parsed := &libvirtxml.DomainBackup{}
	if err := hypervisor.ReadXML(ctx, text, parsed); err != nil {
		return backup.Job{}, fmt.Errorf("parse the XML of the backup: %w", err)
	}
	job := backup.Job{State: backup.JobActive}
	if parsed.Pull != nil {
		job.Socket = "elsewhere"
		if server := parsed.Pull.Server; server != nil && server.UNIX != nil {
			job.Socket = server.UNIX.Socket
		}
	}
	return job, nil
}

// isBackup reports whether a job is a backup.
func isBackup(info *libvirt.DomainJobInfo) bool {
	return info.OperationSet && info.Operation == libvirt.DOMAIN_JOB_OPERATION_BACKUP
}

// jobResult translates the result of the last job.
func jobResult(result *libvirt.DomainJobInfo) backup.Job {
	switch {
	case result.Type == libvirt.DOMAIN_JOB_NONE, !isBackup(result):
		return backup.Job{}
	case result.Type == libvirt.DOMAIN_JOB_COMPLETED:
		return backup.Job{State: backup.JobSucceeded}
	case result.Type == libvirt.DOMAIN_JOB_CANCELLED: //nolint:misspell // libvirt's name
		return backup.Job{State: backup.JobFailed, Problem: "the backup was aborted"}
	default:
		return backup.Job{State: backup.JobFailed,
			Problem: hypervisor.CleanLine(hypervisor.Failure(result.ErrorMessage), hypervisor.MaxBackupProblem)}
	}
}

// DiscardJobResult makes libvirt forget the result of the last job.
func (c *Conn) DiscardJobResult(ctx context.Context, domain string) error {
	return c.onDomain(ctx, domain, "discard the result of the last job", func(d *libvirt.Domain) error {
		// Reading a result without the flag to keep it discards it.
		_, err := d.GetJobStats(libvirt.DOMAIN_JOB_STATS_COMPLETED)
		return err
	})
}

// MakeBackupDir creates the directory of a backup as a pool. It does nothing if the pool exists.
func (c *Conn) MakeBackupDir(ctx context.Context, pool, dir string) error {
	return c.call(ctx, actTimeout, "create the directory "+dir,
		func(l *libvirt.Connect) error { return makeDirectory(l, pool, dir) })
}

// BeginBackup creates a directory as a pool and begins to copy disks to images in it, or to serve disks with scratch
// files in it. It fails if an image exists, and then creates no checkpoint.
func (c *Conn) BeginBackup(ctx context.Context, domain string, r hypervisor.BackupRequest) error {
	definition, checkpoint, err := backupXML(r)
	if err != nil {
		return err
	}
	if err := c.MakeBackupDir(ctx, r.Pool, r.Dir); err != nil {
		return err
	}
	return c.call(ctx, actTimeout, "begin the backup", func(l *libvirt.Connect) error {
		return withDomain(l, domain, func(d *libvirt.Domain) error { return d.BackupBegin(definition, checkpoint, 0) })
	})
}

// makeDirectory creates a directory, and the missing ones above it, as a transient pool. It does nothing if the pool
// exists.
func makeDirectory(l *libvirt.Connect, name, dir string) error {
	pool, err := l.LookupStoragePoolByName(name)
	if err == nil {
		return pool.Free()
	}
	if !isCode(err, libvirt.ERR_NO_STORAGE_POOL) {
		return err
	}
	text, err := (&libvirtxml.StoragePool{Type: "dir", Name: name,
		Target: &libvirtxml.StoragePoolTarget{Path: dir}}).Marshal()
	if err != nil {
		return fmt.Errorf("write the pool's XML: %w", err)
	}
	if pool, err = l.StoragePoolCreateXML(text, libvirt.STORAGE_POOL_CREATE_WITH_BUILD); err != nil {
		return err
	}
	return pool.Free()
}

// HasImages reports whether all files exist in the directory of a backup.
func (c *Conn) HasImages(ctx context.Context, pool, dir string, files []string) (all bool, err error) {
	err = c.call(ctx, actTimeout, "look for the images in "+dir, func(l *libvirt.Connect) error {
		p, err := ensurePool(l, pool, dir)
		if err != nil {
			return err
		}
		defer func() { _ = p.Free() }()
		for _, file := range files {
			volume, err := p.LookupStorageVolByName(file)
			if isCode(err, libvirt.ERR_NO_STORAGE_VOL) {
				return nil
			}
			if err != nil {
				return err
			}
			_ = volume.Free()
		}
		all = true
		return nil
	})
	return all, err
}

// ForgetPool ends a pool, and leaves its files. It does nothing if there is none.
func (c *Conn) ForgetPool(ctx context.Context, name string) error {
	return c.call(ctx, queryTimeout, "end the pool "+name, func(l *libvirt.Connect) error {
		pool, err := l.LookupStoragePoolByName(name)
		if isCode(err, libvirt.ERR_NO_STORAGE_POOL) {
			return nil
		}
		if err != nil {
			return err
		}
		defer func() { _ = pool.Free() }()
		return pool.Destroy()
	})
}

// AbortBackup aborts a backup. It does nothing if there is none.
func (c *Conn) AbortBackup(ctx context.Context, domain string) error {
	return c.onDomain(ctx, domain, "abort the backup", func(d *libvirt.Domain) error {
		active, err := d.GetJobStats(0)
		if err != nil || active.Type == libvirt.DOMAIN_JOB_NONE || !isBackup(active) {
			return err
		}
		err = d.AbortJob()
		if isCode(err, libvirt.ERR_OPERATION_INVALID) {
			return nil // It has ended in between.
		}
		return err
	})
}

// OpenPull connects to the socket at which QEMU serves the disks of a backup. A session of NBD follows.
func (c *Conn) OpenPull(ctx context.Context, id string) (net.Conn, error) {
	return c.openSocket(ctx, launcherpod.BackupSocketName(id), "connect to the disks of backup "+id, "backup")
}
