// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package fake

import (
	"context"
	"errors"
	"fmt"
	"time"

	"libvirt.org/go/libvirtxml"

	"github.com/vireo-project/vireo/internal/handler/hypervisor"
	"github.com/vireo-project/vireo/internal/handler/migrationtls"
	"github.com/vireo-project/vireo/internal/migration"
)

// moving is what a launcher has to do with a migration.
type moving struct {
	// job says that there is a migration job, suspended that the guest stopped to switch over.
	job, suspended bool
	// dead says that QEMU has ended, which libvirt does not say yet.
	dead bool
	// lingers keeps the job when the process that began it has gone, until Notice.
	lingers bool
	// receiving says that the guest is on its way to here.
	receiving bool
	// cancel ends the copying.
	cancel   context.CancelCauseFunc
	copies   int
	progress hypervisor.CopyProgress
	postCopy bool
	resumed  time.Time
	downtime time.Duration
	limit    uint64
	tls      *migrationtls.Files
	nvram    []byte
}

var errCanceled = errors.New("the copying was canceled")

// Linger makes the launcher keep the job of a process that has gone, as a libvirtd does that has not noticed it yet, until
// Notice is called.
func (l *Launcher) Linger() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.moving.lingers = true
}

// Notice ends the job of a process that has gone.
func (l *Launcher) Notice() { l.change(func() { l.moving.job, l.moving.lingers = false, false }) }

// SetProgress is what CopyProgress tells from now on, while there is a job.
func (l *Launcher) SetProgress(p hypervisor.CopyProgress) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.moving.progress = p
}

// Copies counts how often the guest was begun to be copied.
func (l *Launcher) Copies() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.moving.copies
}

// PostCopyStarted says that a post-copy was asked for, MaxDowntime and Bandwidth what was set last.
func (l *Launcher) PostCopyStarted() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.moving.postCopy
}

// MaxDowntime is the limit that was set last.
func (l *Launcher) MaxDowntime() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.moving.downtime
}

// Bandwidth is the limit that was set last.
func (l *Launcher) Bandwidth() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.moving.limit
}

// MigrationTLS are the certificates that lie in the Pod, or nil.
func (l *Launcher) MigrationTLS() *migrationtls.Files {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.moving.tls
}

// LiveXML is the running domain.
func (l *Launcher) LiveXML(ctx context.Context, name string) (*libvirtxml.Domain, error) {
	found, err := l.Domain(ctx, name)
	if err != nil {
		return nil, err
	}
	return found.XML, nil
}

// Source says how far the guest is from leaving.
func (l *Launcher) Source(ctx context.Context, name string) (hypervisor.SourceState, error) {
	if err := l.enter(ctx, "domain"); err != nil {
		return hypervisor.SourceState{}, err
	}
	// The domain and the job are of one moment, as in libvirt's answer.
	l.mu.Lock()
	defer l.mu.Unlock()
	found := l.named(name)
	if found == nil {
		return hypervisor.SourceState{}, hypervisor.ErrNoDomain
	}
	state := hypervisor.SourceState{Domain: migration.SourceRunning, Job: l.moving.job}
	switch {
	case found.State == hypervisor.StateEnded && found.Reason == "Migrated":
		state.Domain = migration.SourceHandedOver
	case !found.Active():
		state.Domain = migration.SourceEnded
	case l.moving.suspended && l.moving.postCopy:
		state.Domain = migration.SourceServing
	case l.moving.suspended:
		state.Domain = migration.SourceSuspended
	}
	return state, nil
}

// named is the domain of a name, or nil. The lock is held.
func (l *Launcher) named(name string) *hypervisor.Domain {
	if l.domain == nil || l.domain.XML.Name != name {
		return nil
	}
	return l.domain
}

// Target says how far the guest is from having arrived.
func (l *Launcher) Target(ctx context.Context, name string) (migration.TargetDomain, error) {
	if err := l.enter(ctx, "domain"); err != nil {
		return migration.TargetAbsent, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	found := l.named(name)
	switch {
	case found == nil, !found.Active():
		return migration.TargetAbsent, nil
	case l.moving.receiving:
		return migration.TargetReceiving, nil
	case found.State == hypervisor.StatePaused && found.Reason == hypervisor.PausedByUser:
		return migration.TargetComplete, nil
	default:
		return migration.TargetRunning, nil
	}
}

// ResumeSource lets a guest go on that was suspended to move.
func (l *Launcher) ResumeSource(ctx context.Context, _ string) error {
	if err := l.enter(ctx, "resume"); err != nil {
		return err
	}
	var err error
	l.change(func() {
		if l.moving.job || l.moving.dead || !l.domain.Active() {
			err = hypervisor.ErrNotRunning
			return
		}
		l.moving.suspended = false
		l.domain.State, l.domain.Reason = hypervisor.StateRunning, ""
	})
	return err
}

// ResumeTarget lets a guest run that has arrived.
func (l *Launcher) ResumeTarget(ctx context.Context, _ string) error {
	if err := l.enter(ctx, "resume"); err != nil {
		return err
	}
	var err error
	l.change(func() {
		if l.moving.receiving || !l.domain.Active() {
			err = hypervisor.ErrNotRunning
			return
		}
		l.domain.State, l.domain.Reason, l.moving.resumed = hypervisor.StateRunning, "", time.Now()
	})
	return err
}

// ResumedSince is when that was.
func (l *Launcher) ResumedSince() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.moving.resumed
}

// CopyProgress is what SetProgress was given, while there is a job.
func (l *Launcher) CopyProgress(ctx context.Context, _ string) (*hypervisor.CopyProgress, error) {
	if err := l.enter(ctx, "progress"); err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.moving.job {
		return nil, nil
	}
	progress := l.moving.progress
	return &progress, nil
}

// CancelCopy ends the copying.
func (l *Launcher) CancelCopy(ctx context.Context, _ string) error {
	if err := l.enter(ctx, "cancel"); err != nil {
		return err
	}
	l.change(func() {
		if l.moving.cancel != nil {
			l.moving.cancel(errCanceled)
		} else if !l.moving.suspended {
			l.moving.job = false
		}
	})
	return nil
}

// StartPostCopy notes that it was called.
func (l *Launcher) StartPostCopy(ctx context.Context, _ string) error {
	return l.noted(ctx, "postcopy", func(m *moving) { m.postCopy = true })
}

// SetMaxDowntime notes the limit.
func (l *Launcher) SetMaxDowntime(ctx context.Context, _ string, limit time.Duration) error {
	return l.noted(ctx, "downtime", func(m *moving) { m.downtime = limit })
}

// SetCopyBandwidth notes the limit.
func (l *Launcher) SetCopyBandwidth(ctx context.Context, _ string, bytesPerSecond uint64) error {
	return l.noted(ctx, "bandwidth", func(m *moving) { m.limit = bytesPerSecond })
}

// PutMigrationTLS keeps the certificates.
func (l *Launcher) PutMigrationTLS(ctx context.Context, files migrationtls.Files) error {
	return l.noted(ctx, "tls", func(m *moving) { m.tls = &files })
}

// RemoveMigrationTLS forgets the certificates.
func (l *Launcher) RemoveMigrationTLS(ctx context.Context) error {
	return l.noted(ctx, "tls", func(m *moving) { m.tls = nil })
}

func (l *Launcher) noted(ctx context.Context, call string, do func(*moving)) error {
	if err := l.enter(ctx, call); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	do(&l.moving)
	return nil
}

// Copy copies the guest to the launcher at the other end of the target's connection, step by step as libvirt does. Each step
// can be made to fail or to wait: "begin", "perform" and "confirm" here, "prepare" and "finish" there; and "notice", in which QEMU has
// ended and libvirt does not know. When the context ends
// it is as if the process had: a guest that was suspended stays so.
func (l *Launcher) Copy(ctx context.Context, r hypervisor.CopyRequest) error {
	if err := l.enter(ctx, "begin"); err != nil {
		return err
	}
	stream, err := r.Target(ctx)
	if err != nil {
		return fmt.Errorf("connect to the target: %w: %w", hypervisor.ErrUnreachable, err)
	}
	target := &caller{conn: stream}
	defer target.close()
	copying, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if err := l.begin(cancel); err != nil {
		return err
	}
	text, err := r.XML.Marshal()
	if err == nil {
		err = target.call(copying, procPrepare, text)
	}
	if err == nil {
		err = l.enter(copying, "perform")
	}
	if cause := context.Cause(copying); cause != nil {
		err = cause
	}
	if err != nil {
		if ctx.Err() == nil {
			// The target is told, unless this process is gone.
			_ = target.call(ctx, procFinish, canceled)
		}
		l.end(func() {})
		return err
	}
	l.change(func() {
		l.moving.suspended, l.moving.cancel = true, nil
		l.domain.State, l.domain.Reason = hypervisor.StatePaused, hypervisor.PausedTransient
	})
	if r.Stopped != nil {
		r.Stopped(time.Now())
	}
	if r.Settle != nil {
		if err := r.Settle(ctx); err != nil {
			if ctx.Err() == nil {
				_ = target.call(ctx, procFinish, canceled)
				l.stay()
			}
			return err
		}
	}
	return l.switchOver(ctx, target, r.Dead)
}

// stay ends the job and lets the guest go on.
func (l *Launcher) stay() {
	l.end(func() {
		l.moving.suspended = false
		l.domain.State, l.domain.Reason = hypervisor.StateRunning, ""
	})
}

// SetNVRAM is what ReadNVRAM reads from now on.
func (l *Launcher) SetNVRAM(content []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.moving.nvram = content
}

// NVRAM is what was kept or set last.
func (l *Launcher) NVRAM() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.moving.nvram
}

// ReadNVRAM reads what was set.
func (l *Launcher) ReadNVRAM(ctx context.Context, _ string) ([]byte, error) {
	if err := l.enter(ctx, "nvram"); err != nil {
		return nil, err
	}
	return l.NVRAM(), nil
}

// KeepState keeps the EFI variables.
func (l *Launcher) KeepState(ctx context.Context, _ hypervisor.StateFiles, nvram []byte) error {
	return l.noted(ctx, "state", func(m *moving) { m.nvram = nvram })
}

func (l *Launcher) begin(cancel context.CancelCauseFunc) error {
	var err error
	l.change(func() {
		if !l.domain.Active() || l.moving.job {
			err = hypervisor.ErrNotRunning
			return
		}
		l.moving.job, l.moving.cancel = true, cancel
		l.moving.copies++
	})
	return err
}

// end ends the job.
func (l *Launcher) end(do func()) {
	l.change(func() {
		if !l.moving.lingers {
			l.moving.job = false
		}
		l.moving.cancel = nil
		do()
	})
}

func (l *Launcher) switchOver(ctx context.Context, target *caller, dead func()) error {
	err := target.call(ctx, procFinish, "")
	var refused *refusedError
	switch {
	case errors.As(err, &refused):
		l.stay()
		return err
	case err != nil:
		l.end(func() {})
		return err
	}
	if err := l.enter(ctx, "confirm"); err != nil {
		l.end(func() {})
		return err
	}
	l.change(func() { l.moving.dead = true })
	if dead != nil && ctx.Err() == nil {
		dead()
	}
	// libvirt carries out what it was asked for, whoever waits for it.
	_ = l.enter(ctx, "notice")
	l.end(func() {
		l.moving.suspended, l.moving.job, l.moving.dead = false, false, false
		l.domain.State, l.domain.Reason = hypervisor.StateEnded, "Migrated"
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.answer("confirm")
}
