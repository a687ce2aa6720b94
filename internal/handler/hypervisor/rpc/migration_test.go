// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"testing"

	"libvirt.org/go/libvirt"

	"github.com/vireo-project/vireo/internal/handler/hypervisor"
	"github.com/vireo-project/vireo/internal/libvirtrpc"
	"github.com/vireo-project/vireo/internal/migration"
)

func TestTargetState(t *testing.T) {
	for _, c := range []struct {
		state  libvirt.DomainState
		reason int
		want   migration.TargetDomain
	}{
		{libvirt.DOMAIN_PAUSED, int(libvirt.DOMAIN_PAUSED_STARTING_UP), migration.TargetReceiving},
		{libvirt.DOMAIN_PAUSED, int(libvirt.DOMAIN_PAUSED_MIGRATION), migration.TargetReceiving},
		{libvirt.DOMAIN_PAUSED, int(libvirt.DOMAIN_PAUSED_POSTCOPY), migration.TargetReceiving},
		{libvirt.DOMAIN_PAUSED, 1000, migration.TargetReceiving},
		{libvirt.DOMAIN_PAUSED, int(libvirt.DOMAIN_PAUSED_USER), migration.TargetComplete},
		{libvirt.DOMAIN_PAUSED, int(libvirt.DOMAIN_PAUSED_IOERROR), migration.TargetRunning},
		{libvirt.DOMAIN_PAUSED, int(libvirt.DOMAIN_PAUSED_POSTCOPY_FAILED), migration.TargetRunning},
		{libvirt.DOMAIN_RUNNING, int(libvirt.DOMAIN_RUNNING_MIGRATED), migration.TargetRunning},
		{libvirt.DOMAIN_RUNNING, int(libvirt.DOMAIN_RUNNING_POSTCOPY), migration.TargetRunning},
		// What a QEMU says that is ended before it ran must not become a claim.
		{libvirt.DOMAIN_SHUTDOWN, 0, migration.TargetAbsent},
		{libvirt.DOMAIN_PAUSED, int(libvirt.DOMAIN_PAUSED_SHUTTING_DOWN), migration.TargetAbsent},
		{libvirt.DOMAIN_SHUTOFF, int(libvirt.DOMAIN_SHUTOFF_FAILED), migration.TargetAbsent},
		{libvirt.DOMAIN_NOSTATE, 0, migration.TargetAbsent},
		{libvirt.DomainState(1000), 0, migration.TargetAbsent},
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
		want   migration.SourceDomain
	}{
		{libvirt.DOMAIN_RUNNING, int(libvirt.DOMAIN_RUNNING_MIGRATION_CANCELED), migration.SourceRunning},
		{libvirt.DOMAIN_PAUSED, int(libvirt.DOMAIN_PAUSED_USER), migration.SourceRunning},
		{libvirt.DOMAIN_PAUSED, int(libvirt.DOMAIN_PAUSED_IOERROR), migration.SourceRunning},
		{libvirt.DOMAIN_PAUSED, int(libvirt.DOMAIN_PAUSED_MIGRATION), migration.SourceSuspended},
		{libvirt.DOMAIN_PAUSED, int(libvirt.DOMAIN_PAUSED_POSTCOPY), migration.SourceServing},
		{libvirt.DOMAIN_PAUSED, int(libvirt.DOMAIN_PAUSED_POSTCOPY_FAILED), migration.SourceHandedOver},
		{libvirt.DOMAIN_SHUTOFF, int(libvirt.DOMAIN_SHUTOFF_MIGRATED), migration.SourceHandedOver},
		{libvirt.DOMAIN_SHUTOFF, int(libvirt.DOMAIN_SHUTOFF_DESTROYED), migration.SourceEnded},
		{libvirt.DOMAIN_CRASHED, 0, migration.SourceEnded},
	} {
		if got := sourceState(c.state, c.reason); got != c.want {
			t.Errorf("state %d, reason %d: got %d, want %d", c.state, c.reason, got, c.want)
		}
	}
}

func TestFlagsOfACopy(t *testing.T) {
	plain := copier{CopyRequest: hypervisor.CopyRequest{}}
	if got := plain.flags(); got != libvirtrpc.MigrateLive|libvirtrpc.MigratePersist {
		t.Errorf("got %#x", got)
	}
	all := copier{CopyRequest: hypervisor.CopyRequest{
		CopyDisks: []string{"vda"}, TLSName: "x", AutoConverge: true, PostCopy: true, Parallel: 2, Compression: "zstd", Unsafe: true,
	}}
	want := libvirtrpc.MigrateLive | libvirtrpc.MigratePersist | libvirtrpc.MigrateCopyDisks | libvirtrpc.MigrateTLS |
		libvirtrpc.MigrateAutoConverge | libvirtrpc.MigratePostCopy | libvirtrpc.MigrateParallel | libvirtrpc.MigrateCompressed | libvirtrpc.MigrateUnsafe
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
