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

	"github.com/vireo-project/vireo/internal/handler/hypervisor"
	"github.com/vireo-project/vireo/internal/migration"
)

// LiveXML is the running domain as it can be given to another libvirtd.
func (c *Conn) LiveXML(ctx context.Context, domain string) (*libvirtxml.Domain, error) {
	ctx, end := c.begin(ctx)
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

// Source says how far a guest is from leaving. The job is looked at first: when there is none, the state that follows is not
// changed by the request of a process that is gone.
func (c *Conn) Source(ctx context.Context, domain string) (hypervisor.SourceState, error) {
	var found hypervisor.SourceState
	err := c.call(ctx, queryTimeout, "look at the source's guest", func(l *libvirt.Connect) error {
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
func sourceState(state libvirt.DomainState, reason int) migration.SourceDomain {
	switch state {
	case libvirt.DOMAIN_SHUTOFF:
		if libvirt.DomainShutoffReason(reason) == libvirt.DOMAIN_SHUTOFF_MIGRATED {
			return migration.SourceHandedOver
		}
		return migration.SourceEnded
	case libvirt.DOMAIN_CRASHED:
		return migration.SourceEnded
	case libvirt.DOMAIN_PAUSED:
		switch libvirt.DomainPausedReason(reason) {
		case libvirt.DOMAIN_PAUSED_MIGRATION:
			return migration.SourceSuspended
		case libvirt.DOMAIN_PAUSED_POSTCOPY:
			return migration.SourceServing
		case libvirt.DOMAIN_PAUSED_POSTCOPY_FAILED:
			return migration.SourceHandedOver
		}
	}
	// A guest that a user paused is as good as one that runs.
	return migration.SourceRunning
}

// Target says how far a guest is from having arrived.
func (c *Conn) Target(ctx context.Context, domain string) (migration.TargetDomain, error) {
	found := migration.TargetAbsent
	err := c.call(ctx, queryTimeout, "look at the target's guest", func(l *libvirt.Connect) error {
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
		return migration.TargetAbsent, nil
	}
	return found, err
}

// targetState translates libvirt's state and its reason. libvirt says that the guest is paused by a user at the very moment
// from which it keeps it whatever becomes of the connection with which it was prepared. That a guest runs is only what cannot
// be said of one that never did: a QEMU that is ended while it waits says that it shuts down.
func targetState(state libvirt.DomainState, reason int) migration.TargetDomain {
	switch state {
	case libvirt.DOMAIN_RUNNING, libvirt.DOMAIN_BLOCKED, libvirt.DOMAIN_PMSUSPENDED:
		return migration.TargetRunning
	case libvirt.DOMAIN_PAUSED:
		switch libvirt.DomainPausedReason(reason) {
		case libvirt.DOMAIN_PAUSED_USER:
			return migration.TargetComplete
		case libvirt.DOMAIN_PAUSED_IOERROR, libvirt.DOMAIN_PAUSED_WATCHDOG, libvirt.DOMAIN_PAUSED_CRASHED, libvirt.DOMAIN_PAUSED_SAVE,
			libvirt.DOMAIN_PAUSED_DUMP, libvirt.DOMAIN_PAUSED_SNAPSHOT, libvirt.DOMAIN_PAUSED_POSTCOPY_FAILED:
			return migration.TargetRunning
		case libvirt.DOMAIN_PAUSED_SHUTTING_DOWN:
			return migration.TargetAbsent
		default:
			return migration.TargetReceiving
		}
	default:
		return migration.TargetAbsent
	}
}

// ResumedSince is when the guest ran on last, by what libvirt has said. It is zero if that was not since this connection was made.
func (c *Conn) ResumedSince() time.Time {
	if at := c.resumed.Load(); at != 0 {
		return time.Unix(0, at)
	}
	return time.Time{}
}

// ResumeSource lets a guest go on that was suspended to move. One that libvirt has a job for stays as it is.
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

// ResumeTarget lets a guest run that has arrived.
func (c *Conn) ResumeTarget(ctx context.Context, domain string) error {
	return c.onDomain(ctx, domain, "run the target's guest", func(d *libvirt.Domain) error {
		state, _, err := d.GetState()
		if err != nil || state == libvirt.DOMAIN_RUNNING {
			return err
		}
		return d.Resume()
	})
}

// CopyProgress says how far libvirt's migration job is. Without one there is nothing to say.
func (c *Conn) CopyProgress(ctx context.Context, domain string) (*hypervisor.CopyProgress, error) {
	var progress *hypervisor.CopyProgress
	err := c.onDomain(ctx, domain, "ask how far the migration is", func(d *libvirt.Domain) error {
		info, err := jobOf(d)
		if err != nil || info == nil {
			return err
		}
		progress = progressOf(info)
		state, reason, err := d.GetState()
		progress.PostCopy = state == libvirt.DOMAIN_PAUSED && libvirt.DomainPausedReason(reason) == libvirt.DOMAIN_PAUSED_POSTCOPY
		return err
	})
	return progress, err
}

// jobOf is the migration job of a domain, or nil.
func jobOf(d *libvirt.Domain) (*libvirt.DomainJobInfo, error) {
	info, err := d.GetJobStats(0)
	if isCode(err, libvirt.ERR_OPERATION_INVALID) {
		// It does not run.
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if info.Type == libvirt.DOMAIN_JOB_NONE {
		return nil, nil
	}
	return info, nil
}

func progressOf(info *libvirt.DomainJobInfo) *hypervisor.CopyProgress {
	return &hypervisor.CopyProgress{
		Elapsed: milliseconds(info.TimeElapsed), Downtime: milliseconds(info.Downtime), Setup: milliseconds(info.SetupTime),
		Memory: hypervisor.CopyAmount{
			Total: info.MemTotal, Processed: info.MemProcessed, Remaining: info.MemRemaining, BytesPerSecond: info.MemBps,
		},
		Disk: hypervisor.CopyAmount{
			Total: info.DiskTotal, Processed: info.DiskProcessed, Remaining: info.DiskRemaining, BytesPerSecond: info.DiskBps,
		},
		DirtyBytesPerSecond: info.MemDirtyRate * info.MemPageSize, Iteration: info.MemIteration, Throttle: info.AutoConvergeThrottle,
	}
}

// milliseconds bounds what a launcher says.
func milliseconds(n uint64) time.Duration {
	return time.Duration(min(n, uint64(1<<40))) * time.Millisecond
}

// CancelCopy ends a migration job. It is done when there is none.
func (c *Conn) CancelCopy(ctx context.Context, domain string) error {
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

// StartPostCopy lets the target's guest run with what it has, and fetch the rest. There is no way back.
func (c *Conn) StartPostCopy(ctx context.Context, domain string) error {
	// First: the call may fail, and libvirt begin it all the same.
	c.postCopy.Store(true)
	return c.onDomain(ctx, domain, "begin the post-copy", func(d *libvirt.Domain) error { return d.MigrateStartPostCopy(0) })
}

// SetMaxDowntime says how long the guest may stand still at the end of the copying.
func (c *Conn) SetMaxDowntime(ctx context.Context, domain string, limit time.Duration) error {
	return c.onDomain(ctx, domain, "limit the downtime", func(d *libvirt.Domain) error {
		return d.MigrateSetMaxDowntime(uint64(max(limit.Milliseconds(), 1)), 0)
	})
}

// SetCopyBandwidth limits how many bytes are copied in a second; 0 ends the limit.
func (c *Conn) SetCopyBandwidth(ctx context.Context, domain string, bytesPerSecond uint64) error {
	limit := unlimited
	if bytesPerSecond > 0 {
		limit = mebibytes(bytesPerSecond)
	}
	return c.onDomain(ctx, domain, "limit the bandwidth", func(d *libvirt.Domain) error { return d.MigrateSetMaxSpeed(limit, 0) })
}

// unlimited is the highest bandwidth that libvirt takes, in MiB/s (QEMU_DOMAIN_MIG_BANDWIDTH_MAX, src/qemu/qemu_domain.h).
const unlimited = uint64(1<<63-1) / mebibyte
