// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package libvirt

import (
	"context"
	"errors"
	"fmt"
	"time"

	"libvirt.org/go/libvirtxml"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/migrate/qemutls"
	"github.com/vireo-project/vireo/internal/decide/migration/protocol"
)

// moving is a launcher's state of a migration.
type moving struct {
	// job reports whether there is a migration job, suspended whether the guest is paused to switch over.
	job, suspended bool
	// exited reports whether QEMU has exited, which libvirt does not report yet.
	exited bool
	// keepsJob keeps the job when the process that started it is gone, until EndJob.
	keepsJob bool
	// receiving reports whether the guest is being transferred to this launcher.
	receiving bool
	// cancel ends the transfer.
	cancel    context.CancelCauseFunc
	transfers int
	progress  hypervisor.TransferProgress
	postCopy  bool
	resumed   time.Time
	downtime  time.Duration
	limit     uint64
	tls       *qemutls.Files
	nvram     []byte
}

var errCanceled = errors.New("the transfer was canceled")

// KeepJob makes the launcher keep the job of a process that is gone until EndJob is called, as libvirtd keeps it until
// it detects that the process is gone.
func (l *Launcher) KeepJob() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.moving.keepsJob = true
}

// EndJob ends the job of a process that is gone.
func (l *Launcher) EndJob() { l.change(func() { l.moving.job, l.moving.keepsJob = false, false }) }

// SetProgress sets what TransferProgress returns while there is a job.
func (l *Launcher) SetProgress(p hypervisor.TransferProgress) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.moving.progress = p
}

// Transfers counts how often a transfer of the guest was started.
func (l *Launcher) Transfers() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.moving.transfers
}

// PostCopyStarted reports whether a post-copy was requested.
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

// MigrationTLS returns the certificates in the Pod, or nil.
func (l *Launcher) MigrationTLS() *qemutls.Files {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.moving.tls
}

// LiveXML returns the running domain.
func (l *Launcher) LiveXML(ctx context.Context, name string) (*libvirtxml.Domain, error) {
	found, err := l.Domain(ctx, name)
	if err != nil {
		return nil, err
	}
	return found.XML, nil
}

// SourceState returns the state of a migration's source.
func (l *Launcher) SourceState(ctx context.Context, name string) (hypervisor.SourceState, error) {
	if err := l.enter(ctx, "domain"); err != nil {
		return hypervisor.SourceState{}, err
	}
	// Domain and job are read together, as by libvirt.
	l.mu.Lock()
	defer l.mu.Unlock()
	found := l.named(name)
	if found == nil {
		return hypervisor.SourceState{}, hypervisor.ErrNoDomain
	}
	state := hypervisor.SourceState{Domain: protocol.SourceRunning, Job: l.moving.job}
	switch {
	case found.State == hypervisor.StateEnded && found.Reason == "Migrated":
		state.Domain = protocol.SourceMigrated
	case !found.Active():
		state.Domain = protocol.SourceEnded
	case l.moving.suspended && l.moving.postCopy:
		state.Domain = protocol.SourcePostCopy
	case l.moving.suspended:
		state.Domain = protocol.SourceSuspended
	}
	return state, nil
}

// named returns the domain of a name, or nil. The caller holds the lock.
func (l *Launcher) named(name string) *hypervisor.Domain {
	if l.domain == nil || l.domain.XML.Name != name {
		return nil
	}
	return l.domain
}

// TargetState returns the state of a migration's target.
func (l *Launcher) TargetState(ctx context.Context, name string) (protocol.TargetDomain, error) {
	if err := l.enter(ctx, "domain"); err != nil {
		return protocol.TargetAbsent, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	found := l.named(name)
	switch {
	case found == nil, !found.Active():
		return protocol.TargetAbsent, nil
	case l.moving.receiving:
		return protocol.TargetReceiving, nil
	case found.State == hypervisor.StatePaused && found.Reason == hypervisor.PausedByUser:
		return protocol.TargetComplete, nil
	default:
		return protocol.TargetRunning, nil
	}
}

// ResumeSource resumes a guest that was suspended for a migration.
func (l *Launcher) ResumeSource(ctx context.Context, _ string) error {
	if err := l.enter(ctx, "resume"); err != nil {
		return err
	}
	var err error
	l.change(func() {
		if l.moving.job || l.moving.exited || !l.domain.Active() {
			err = hypervisor.ErrNotRunning
			return
		}
		l.moving.suspended = false
		l.domain.State, l.domain.Reason = hypervisor.StateRunning, ""
	})
	return err
}

// ResumeTarget resumes a migration's complete target.
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

// ResumedSince is when ResumeTarget succeeded.
func (l *Launcher) ResumedSince() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.moving.resumed
}

// TransferProgress returns what SetProgress set, while there is a job.
func (l *Launcher) TransferProgress(ctx context.Context, _ string) (*hypervisor.TransferProgress, error) {
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

// CancelTransfer ends the transfer.
func (l *Launcher) CancelTransfer(ctx context.Context, _ string) error {
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

// StartPostCopy records the call.
func (l *Launcher) StartPostCopy(ctx context.Context, _ string) error {
	return l.record(ctx, "postcopy", func(m *moving) { m.postCopy = true })
}

// SetMaxDowntime records the limit.
func (l *Launcher) SetMaxDowntime(ctx context.Context, _ string, limit time.Duration) error {
	return l.record(ctx, "downtime", func(m *moving) { m.downtime = limit })
}

// SetTransferBandwidth records the limit.
func (l *Launcher) SetTransferBandwidth(ctx context.Context, _ string, bytesPerSecond uint64) error {
	return l.record(ctx, "bandwidth", func(m *moving) { m.limit = bytesPerSecond })
}

// PutMigrationTLS stores the certificates.
func (l *Launcher) PutMigrationTLS(ctx context.Context, files qemutls.Files) error {
	return l.record(ctx, "tls", func(m *moving) { m.tls = &files })
}

// RemoveMigrationTLS removes the certificates.
func (l *Launcher) RemoveMigrationTLS(ctx context.Context) error {
	return l.record(ctx, "tls", func(m *moving) { m.tls = nil })
}

func (l *Launcher) record(ctx context.Context, call string, do func(*moving)) error {
	if err := l.enter(ctx, call); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	do(&l.moving)
	return nil
}

// Transfer transfers the guest to the launcher at the other end of the target's connection, step by step as libvirt
// does. Each step can be made to fail or to wait: "begin", "perform" and "confirm" here, "prepare" and "finish" at the
// target; and "notice", in which QEMU has exited and libvirt has not noticed. The end of the context is like the end of
// the process: a suspended guest stays suspended.
func (l *Launcher) Transfer(ctx context.Context, r hypervisor.TransferRequest) error {
	if err := l.enter(ctx, "begin"); err != nil {
		return err
	}
	stream, err := r.DialTarget(ctx)
	if err != nil {
		return fmt.Errorf("connect to the target: %w: %w", hypervisor.ErrUnreachable, err)
	}
	target := &caller{conn: stream}
	defer target.close()
	transferring, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if err := l.begin(cancel); err != nil {
		return err
	}
	text, err := r.XML.Marshal()
	if err == nil {
		err = target.call(transferring, procPrepare, text)
	}
	if err == nil {
		err = l.enter(transferring, "perform")
	}
	if cause := context.Cause(transferring); cause != nil {
		err = cause
	}
	if err != nil {
		if ctx.Err() == nil {
			// Cancels at the target, unless this process is gone.
			_ = target.call(ctx, procFinish, canceled)
		}
		l.end(func() {})
		return err
	}
	l.change(func() {
		l.moving.suspended, l.moving.cancel = true, nil
		l.domain.State, l.domain.Reason = hypervisor.StatePaused, hypervisor.PausedByLibvirt
	})
	if r.OnPaused != nil {
		r.OnPaused(time.Now())
	}
	if r.BeforeFinish != nil {
		if err := r.BeforeFinish(ctx); err != nil {
			if ctx.Err() == nil {
				_ = target.call(ctx, procFinish, canceled)
				l.resume()
			}
			return err
		}
	}
	if r.KeepBitmaps != nil {
		if err := r.KeepBitmaps(ctx); err != nil {
			if ctx.Err() == nil {
				_ = target.call(ctx, procFinish, canceled)
				l.resume()
			}
			return err
		}
	}
	return l.switchOver(ctx, target, r.OnQEMUExit)
}

// resume ends the job and resumes the guest.
func (l *Launcher) resume() {
	l.end(func() {
		l.moving.suspended = false
		l.domain.State, l.domain.Reason = hypervisor.StateRunning, ""
	})
}

// SetNVRAM sets what ReadNVRAM returns.
func (l *Launcher) SetNVRAM(content []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.moving.nvram = content
}

// NVRAM returns what was stored or set last.
func (l *Launcher) NVRAM() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.moving.nvram
}

// ReadNVRAM returns what was set.
func (l *Launcher) ReadNVRAM(ctx context.Context, _ string) ([]byte, error) {
	if err := l.enter(ctx, "nvram"); err != nil {
		return nil, err
	}
	return l.NVRAM(), nil
}

// KeepState stores the EFI variables.
func (l *Launcher) KeepState(ctx context.Context, _ hypervisor.StateFiles, nvram []byte) error {
	return l.record(ctx, "state", func(m *moving) { m.nvram = nvram })
}

// CheckState finds no damage, unless Fail has set an error.
func (l *Launcher) CheckState(ctx context.Context, _ hypervisor.StateFiles) error {
	return l.enter(ctx, "check state")
}

func (l *Launcher) begin(cancel context.CancelCauseFunc) error {
	var err error
	l.change(func() {
		if !l.domain.Active() || l.moving.job {
			err = hypervisor.ErrNotRunning
			return
		}
		l.moving.job, l.moving.cancel = true, cancel
		l.moving.transfers++
	})
	return err
}

// end ends the job.
func (l *Launcher) end(do func()) {
	l.change(func() {
		if !l.moving.keepsJob {
			l.moving.job = false
		}
		l.moving.cancel = nil
		do()
	})
}

func (l *Launcher) switchOver(ctx context.Context, target *caller, onExit func()) error {
	err := target.call(ctx, procFinish, "")
	var refused *refusedError
	switch {
	case errors.As(err, &refused):
		l.resume()
		return err
	case err != nil:
		l.end(func() {})
		return err
	}
	if err := l.enter(ctx, "confirm"); err != nil {
		l.end(func() {})
		return err
	}
	l.change(func() { l.moving.exited = true })
	if onExit != nil && ctx.Err() == nil {
		onExit()
	}
	// libvirt carries out the request even if its caller is gone.
	_ = l.enter(ctx, "notice")
	l.end(func() {
		l.moving.suspended, l.moving.job, l.moving.exited = false, false, false
		l.domain.State, l.domain.Reason = hypervisor.StateEnded, "Migrated"
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.respond("confirm")
}
