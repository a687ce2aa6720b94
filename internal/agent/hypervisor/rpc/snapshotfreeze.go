// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/decide/snapshot/freeze"
)

// windowsID is what a guest agent reports as the ID of Windows. Source: QEMU qga/qapi-schema.json, GuestOSInfo.
const windowsID = "mswindows"

// SnapshotFreeze returns the record of a snapshot's freeze in the running domain's metadata, or nil. If only the record
// cannot be read, the error is hypervisor.ErrFreezeRecord.
func (c *Conn) SnapshotFreeze(ctx context.Context, domain string) (*freeze.Record, error) {
	var record *freeze.Record
	var invalid error
	err := c.readFreezes(ctx, domain, func(d *hypervisor.Domain) { record, invalid = d.SnapshotFreeze() })
	return record, cmp.Or(err, invalid)
}

// RecordSnapshotFreeze writes the record of a snapshot's freeze to the running domain's metadata. It waits for a thaw
// on a user's request, which depends on the record.
func (c *Conn) RecordSnapshotFreeze(ctx context.Context, domain string, record freeze.Record) error {
	release, err := c.lockFreezes(ctx)
	if err != nil {
		return err
	}
	defer release()
	return c.writeSnapshotFreeze(ctx, domain, record)
}

func (c *Conn) writeSnapshotFreeze(ctx context.Context, domain string, record freeze.Record) error {
	return c.setMetadata(ctx, domain, "write the freeze for a snapshot to the domain's metadata",
		hypervisor.SnapshotFreezeNote(record), hypervisor.SnapshotFreezePrefix, hypervisor.SnapshotFreezeURI)
}

// Frozen reports whether the guest agent reports the guest's file systems as frozen.
func (c *Conn) Frozen(ctx context.Context, domain string) (frozen bool, err error) {
	err = c.converse(ctx, domain, guestAgentTimeout, func(ctx context.Context, g guest) (err error) {
		frozen, err = g.frozen(ctx)
		return err
	})
	return frozen, err
}

// FreezeForSnapshot freezes the guest's file systems, unless they are frozen. When it returns, the persistent state of
// TPM and EFI, of which a snapshot is taken as well, is on its disk.
func (c *Conn) FreezeForSnapshot(ctx context.Context, domain string) error {
	release, err := c.lockFreezes(ctx)
	if err != nil {
		return err
	}
	defer release()
	err = c.converse(ctx, domain, freezeTimeout, func(ctx context.Context, g guest) error {
		if frozen, err := g.frozen(ctx); err != nil || frozen {
			return err
		}
		count, err := g.count(ctx, "guest-fsfreeze-freeze")
		if err == nil && count == 0 {
			return fmt.Errorf("%w: it has no file systems that can be frozen", hypervisor.ErrGuestRefused)
		}
		return err
	})
	if err != nil && !errors.Is(err, hypervisor.ErrGuestRefused) {
		return err
	}
	// The snapshot is taken also if the guest refuses.
	return errors.Join(err, c.syncState(ctx))
}

// ThawAfterSnapshot thaws the guest's file systems, unless they are frozen on a user's request, too. If the guest agent
// reports that they were frozen until then, it writes the record and returns true. Both are done while no other freeze
// or thaw is, because a thaw on a user's request leaves a guest frozen whose record has not ended.
func (c *Conn) ThawAfterSnapshot(ctx context.Context, domain string, record freeze.Record) (ended bool, err error) {
	release, err := c.lockFreezes(ctx)
	if err != nil {
		return false, err
	}
	defer release()
	var byUser bool
	if err := c.readFreezes(ctx, domain, func(d *hypervisor.Domain) { byUser = d.Freeze() != nil }); err != nil {
		return false, err
	}
	frozen, err := c.thawUnless(ctx, domain, byUser)
	if err != nil || !frozen {
		return false, err
	}
	if record.Stage == freeze.Thawed {
		record.ThawedAt = time.Now()
	}
	if byUser && record.Kept && !c.reportsThaws() {
		record.Kept = false
		record.Problem = "the guest stays frozen on a user's request, and only a thaw shows whether Windows kept it frozen"
	}
	return true, c.writeSnapshotFreeze(ctx, domain, record)
}

// thawUnless thaws the guest's file systems unless they are to stay frozen, and returns whether they were frozen.
func (c *Conn) thawUnless(ctx context.Context, domain string, stay bool) (frozen bool, err error) {
	err = c.converse(ctx, domain, freezeTimeout, func(ctx context.Context, g guest) error {
		var err error
		if frozen, err = g.frozen(ctx); stay || err == nil && !frozen {
			return err
		}
		count, err := g.count(ctx, "guest-fsfreeze-thaw")
		frozen = count > 0
		return err
	})
	return frozen && err == nil, err
}

// reportsThaws reports whether the guest's freeze status shows that the guest has thawed by itself. Windows' does not.
// That the operating system is not known counts as no: the guest agent does not report it while it is frozen.
func (c *Conn) reportsThaws() bool {
	info := c.guest.info.Load()
	return info != nil && info.OS.ID != "" && !strings.EqualFold(info.OS.ID, windowsID)
}

// count executes a freeze or thaw and returns the number of file systems.
func (g guest) count(ctx context.Context, command string) (count int, err error) {
	response, err := g.execute(ctx, command, freezeWait)
	if err != nil {
		return 0, err
	}
	return count, parseResponse(response, &count)
}
