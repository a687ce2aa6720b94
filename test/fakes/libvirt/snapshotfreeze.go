// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package libvirt

import (
	"context"
	"time"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/decide/snapshot/freeze"
)

// SetFrozen sets whether the guest's file systems are frozen, as the guest itself can.
func (l *Launcher) SetFrozen(frozen bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.frozen = frozen
}

// IsFrozen reports whether the guest's file systems are frozen.
func (l *Launcher) IsFrozen() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.frozen
}

// SnapshotFreeze returns the record in the domain's metadata.
func (l *Launcher) SnapshotFreeze(ctx context.Context, name string) (*freeze.Record, error) {
	if err := l.running(ctx, "domain", name); err != nil {
		return nil, err
	}
	return l.Snapshot().SnapshotFreeze()
}

// RecordSnapshotFreeze writes the record to the domain's metadata.
func (l *Launcher) RecordSnapshotFreeze(ctx context.Context, name string, record freeze.Record) error {
	if err := l.running(ctx, "record", name); err != nil {
		return err
	}
	l.setNote(hypervisor.SnapshotFreezeURI,
		prefixed(hypervisor.SnapshotFreezeNote(record), hypervisor.SnapshotFreezePrefix, hypervisor.SnapshotFreezeURI))
	return nil
}

// Frozen returns what the guest agent reports.
func (l *Launcher) Frozen(ctx context.Context, name string) (bool, error) {
	agent, err := l.guestAgent(ctx, "agent", name)
	if err != nil {
		return false, err
	}
	return agent.Frozen, nil
}

// FreezeForSnapshot freezes the guest.
func (l *Launcher) FreezeForSnapshot(ctx context.Context, name string) error {
	if _, err := l.guestAgent(ctx, "freeze", name); err != nil {
		return err
	}
	l.SetFrozen(true)
	return nil
}

// ThawAfterSnapshot thaws the guest unless it was frozen on a user's request, and writes the record if it was frozen
// until then.
func (l *Launcher) ThawAfterSnapshot(ctx context.Context, name string, record freeze.Record) (bool, error) {
	agent, err := l.guestAgent(ctx, "thaw", name)
	if err != nil || !agent.Frozen {
		return false, err
	}
	if l.Snapshot().Freeze() == nil {
		l.SetFrozen(false)
	}
	if record.Stage == freeze.Thawed {
		record.ThawedAt = time.Now()
	}
	return true, l.RecordSnapshotFreeze(ctx, name, record)
}
