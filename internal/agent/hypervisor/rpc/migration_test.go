// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"testing"

	"libvirt.org/go/libvirt"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/decide/migration/protocol"
	"github.com/vireo-project/vireo/internal/wire/libvirtwire"
)

func TestTargetState(t *testing.T) {
	for _, c := range []struct {
		state  libvirt.DomainState
		reason int
		want   protocol.TargetDomain
	}{
		{libvirt.DOMAIN_PAUSED, int(libvirt.DOMAIN_PAUSED_STARTING_UP), protocol.TargetReceiving},
		{libvirt.DOMAIN_PAUSED, int(libvirt.DOMAIN_PAUSED_MIGRATION), protocol.TargetReceiving},
		{libvirt.DOMAIN_PAUSED, int(libvirt.DOMAIN_PAUSED_POSTCOPY), protocol.TargetReceiving},
		{libvirt.DOMAIN_PAUSED, 1000, protocol.TargetReceiving},
		{libvirt.DOMAIN_PAUSED, int(libvirt.DOMAIN_PAUSED_USER), protocol.TargetComplete},
		{libvirt.DOMAIN_PAUSED, int(libvirt.DOMAIN_PAUSED_IOERROR), protocol.TargetRunning},
		{libvirt.DOMAIN_PAUSED, int(libvirt.DOMAIN_PAUSED_POSTCOPY_FAILED), protocol.TargetRunning},
		{libvirt.DOMAIN_RUNNING, int(libvirt.DOMAIN_RUNNING_MIGRATED), protocol.TargetRunning},
		{libvirt.DOMAIN_RUNNING, int(libvirt.DOMAIN_RUNNING_POSTCOPY), protocol.TargetRunning},
		// A QEMU that is ended before it ran must not count as running.
		{libvirt.DOMAIN_SHUTDOWN, 0, protocol.TargetAbsent},
		{libvirt.DOMAIN_PAUSED, int(libvirt.DOMAIN_PAUSED_SHUTTING_DOWN), protocol.TargetAbsent},
		{libvirt.DOMAIN_SHUTOFF, int(libvirt.DOMAIN_SHUTOFF_FAILED), protocol.TargetAbsent},
		{libvirt.DOMAIN_NOSTATE, 0, protocol.TargetAbsent},
		{libvirt.DomainState(1000), 0, protocol.TargetAbsent},
	} {
		if got := targetState(c.state, c.reason); got != c.want {
			t.Errorf("state %d, reason %d: got %d, want %d", c.state, c.reason, got, c.want)
		}
	}
}

func TestSourceState(t *testing.T) {
	for _, c := range []struct {
		state  libvirt.DomainState
		reason int
		want   protocol.SourceDomain
	}{
		{libvirt.DOMAIN_RUNNING, int(libvirt.DOMAIN_RUNNING_MIGRATION_CANCELED), protocol.SourceRunning},
		{libvirt.DOMAIN_PAUSED, int(libvirt.DOMAIN_PAUSED_USER), protocol.SourceRunning},
		{libvirt.DOMAIN_PAUSED, int(libvirt.DOMAIN_PAUSED_IOERROR), protocol.SourceRunning},
		// libvirt sets it where it would have resumed the source's guest, so the source keeps the guest.
		{libvirt.DOMAIN_PAUSED, int(libvirt.DOMAIN_PAUSED_API_ERROR), protocol.SourceRunning},
		{libvirt.DOMAIN_PAUSED, int(libvirt.DOMAIN_PAUSED_UNKNOWN), protocol.SourceRunning},
		{libvirt.DOMAIN_PAUSED, int(libvirt.DOMAIN_PAUSED_WATCHDOG), protocol.SourceRunning},
		{libvirt.DOMAIN_PAUSED, int(libvirt.DOMAIN_PAUSED_CRASHED), protocol.SourceRunning},
		{libvirt.DOMAIN_PAUSED, 1000, protocol.SourceRunning},
		{libvirt.DOMAIN_PAUSED, int(libvirt.DOMAIN_PAUSED_MIGRATION), protocol.SourceSuspended},
		{libvirt.DOMAIN_PAUSED, int(libvirt.DOMAIN_PAUSED_POSTCOPY), protocol.SourcePostCopy},
		{libvirt.DOMAIN_PAUSED, int(libvirt.DOMAIN_PAUSED_POSTCOPY_FAILED), protocol.SourceMigrated},
		{libvirt.DOMAIN_SHUTOFF, int(libvirt.DOMAIN_SHUTOFF_MIGRATED), protocol.SourceMigrated},
		{libvirt.DOMAIN_SHUTOFF, int(libvirt.DOMAIN_SHUTOFF_DESTROYED), protocol.SourceEnded},
		{libvirt.DOMAIN_CRASHED, 0, protocol.SourceEnded},
	} {
		if got := sourceState(c.state, c.reason); got != c.want {
			t.Errorf("state %d, reason %d: got %d, want %d", c.state, c.reason, got, c.want)
		}
	}
}

// Only reasons for which libvirt or a migration ends the pause are transient.
func TestPausedReason(t *testing.T) {
	for reason, want := range map[libvirt.DomainPausedReason]string{
		libvirt.DOMAIN_PAUSED_USER: hypervisor.PausedByUser, libvirt.DOMAIN_PAUSED_IOERROR: hypervisor.PausedIOError,
		libvirt.DOMAIN_PAUSED_WATCHDOG: hypervisor.PausedWatchdog, libvirt.DOMAIN_PAUSED_CRASHED: hypervisor.PausedCrashed,
		libvirt.DOMAIN_PAUSED_POSTCOPY_FAILED: hypervisor.PausedPostcopyFailed,
		libvirt.DOMAIN_PAUSED_API_ERROR:       hypervisor.PausedAPIError,
		libvirt.DOMAIN_PAUSED_UNKNOWN:         hypervisor.PausedUnknown, 1000: hypervisor.PausedUnknown,
		-1:                                hypervisor.PausedUnknown,
		libvirt.DOMAIN_PAUSED_STARTING_UP: hypervisor.PausedByLibvirt, libvirt.DOMAIN_PAUSED_SAVE: hypervisor.PausedByLibvirt,
		libvirt.DOMAIN_PAUSED_DUMP: hypervisor.PausedByLibvirt, libvirt.DOMAIN_PAUSED_SNAPSHOT: hypervisor.PausedByLibvirt,
		libvirt.DOMAIN_PAUSED_FROM_SNAPSHOT: hypervisor.PausedByLibvirt,
		libvirt.DOMAIN_PAUSED_MIGRATION:     hypervisor.PausedByLibvirt,
		libvirt.DOMAIN_PAUSED_POSTCOPY:      hypervisor.PausedByLibvirt,
		libvirt.DOMAIN_PAUSED_SHUTTING_DOWN: hypervisor.PausedByLibvirt,
	} {
		if state, got := stateOf(libvirt.DOMAIN_PAUSED, int(reason)); state != hypervisor.StatePaused || got != want {
			t.Errorf("reason %d: got %s %q, want %q", reason, state, got, want)
		}
	}
	// The guest of the target of a failed post-copy, which libvirt reports as running.
	if state, got := stateOf(libvirt.DOMAIN_RUNNING,
		int(libvirt.DOMAIN_RUNNING_POSTCOPY_FAILED)); state != hypervisor.StatePaused ||
		got != hypervisor.PausedPostcopyFailed {
		t.Errorf("failed post-copy: got %s %q", state, got)
	}
	if state, got := stateOf(libvirt.DOMAIN_RUNNING,
		int(libvirt.DOMAIN_RUNNING_POSTCOPY)); state != hypervisor.StateRunning || got != "" {
		t.Errorf("post-copy: got %s %q", state, got)
	}
}

func TestTransferFlags(t *testing.T) {
	plain := transfer{TransferRequest: hypervisor.TransferRequest{}}
	if got := plain.flags(); got != libvirtwire.MigrateLive|libvirtwire.MigratePersist {
		t.Errorf("got %#x", got)
	}
	all := transfer{TransferRequest: hypervisor.TransferRequest{
		CopyDisks: []string{"vda"}, TLSName: "x", AutoConverge: true, PostCopy: true, Parallel: 2, Compression: "zstd",
		Unsafe: true,
	}}
	want := libvirtwire.MigrateLive | libvirtwire.MigratePersist | libvirtwire.MigrateCopyDisks | libvirtwire.MigrateTLS |
		libvirtwire.MigrateAutoConverge | libvirtwire.MigratePostCopy | libvirtwire.MigrateParallel |
		libvirtwire.MigrateCompressed | libvirtwire.MigrateUnsafe
	if got := all.flags(); got != want {
		t.Errorf("got %#x, want %#x", got, want)
	}
}

func TestMebibytes(t *testing.T) {
	for bytes, want := range map[uint64]uint64{1: 1, 1 << 20: 1, 1<<20 + 1: 2, 64 << 20: 64} {
		if got := mebibytes(bytes); got != want {
			t.Errorf("%d bytes: got %d MiB, want %d", bytes, got, want)
		}
	}
}
