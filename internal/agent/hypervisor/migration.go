// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package hypervisor

import (
	"context"
	"net"
	"time"

	"libvirt.org/go/libvirtxml"

	"github.com/vireo-project/vireo/internal/decide/migration/protocol"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// Ports of the target's Pod. The guest's NAT does not forward them.
const (
	// MigrationMemoryPort receives the guest's memory.
	MigrationMemoryPort = launcherpod.FirstMigrationPort
	// MigrationDisksPort receives the disks that are copied.
	MigrationDisksPort = launcherpod.LastMigrationPort
)

// SourceState is the state of a migration's source in libvirt.
type SourceState struct {
	// Domain is the guest's state.
	Domain protocol.SourceDomain
	// Job reports whether libvirt has a migration job. One that this process has not started is an orphan.
	Job bool
}

// TransferRequest describes the transfer of a guest to another launcher.
type TransferRequest struct {
	// Domain is the domain's name, at the source and at the target.
	Domain string
	// DialTarget connects to the target's libvirtd. The connection is closed when the transfer is over.
	DialTarget func(context.Context) (net.Conn, error)
	// OnQEMUExit is called when the target has completed the guest and the source's QEMU has exited since, before libvirt
	// reports it. It is not called when the exit cannot be observed. Transfer returns after it.
	OnQEMUExit func()
	// OnPaused is called when all is transferred, with the time since which the guest is paused. It must not block.
	OnPaused func(since time.Time)
	// BeforeFinish is called when all is transferred and the source's guest is paused, before the target completes it: no
	// other node can run the guest yet. An error ends the migration, and the guest stays at the source; in a post-copy,
	// which cannot be ended any more, it is only logged. Nil means that there is nothing to do.
	BeforeFinish func(ctx context.Context) error
	// KeepBitmaps is called after BeforeFinish, but not in a post-copy: there the target has opened its overlays already.
	// An error ends the migration. Nil means that there is nothing to do.
	KeepBitmaps func(ctx context.Context) error
	// XML is the domain as it is to be at the target.
	XML *libvirtxml.Domain
	// Address is where the target's QEMU listens.
	Address string
	// MemoryPort and DisksPort are the target's ports; 0 means the constants of this package.
	MemoryPort, DisksPort uint16
	// Silence is how long a libvirtd may not respond, more than ten seconds; 0 means a minute.
	Silence time.Duration
	// TLSName is the name in the certificate of the target's QEMU. Empty means no encryption.
	TLSName string
	// CopyDisks are the disks to copy, by their target's name.
	CopyDisks []string
	// AutoConverge throttles the guest when it changes memory faster than it can be sent.
	AutoConverge bool
	// PostCopy allows StartPostCopy.
	PostCopy bool
	// Parallel is how many connections the memory is sent over; 0 means the one of libvirt's default.
	Parallel uint
	// Compression is the method with which memory is compressed: zlib or zstd with Parallel, xbzrle without, or none.
	Compression string
	// Unsafe migrates even if libvirt considers a disk's cache mode unsafe for it.
	Unsafe bool
	// MaxDowntime is how long the guest may be paused; 0 leaves it to QEMU.
	MaxDowntime time.Duration
	// Bandwidth is the limit in bytes per second; 0 means none.
	Bandwidth uint64
}

// TransferProgress is the progress of a guest's transfer.
type TransferProgress struct {
	// PostCopy reports whether the target's guest runs and fetches its missing memory.
	PostCopy bool
	// Elapsed is the time since the start.
	Elapsed time.Duration
	// Downtime is how long the guest was paused, or is expected to be.
	Downtime time.Duration
	// Setup is how long QEMU took before it sent anything.
	Setup time.Duration
	// Memory and Disk are the amounts of either.
	Memory, Disk TransferAmount
	// DirtyBytesPerSecond is how fast the guest changes memory.
	DirtyBytesPerSecond uint64
	// Iteration counts the passes over memory.
	Iteration uint64
	// Throttle is by how many percent the guest's CPUs are throttled.
	Throttle int
}

// TransferAmount counts bytes to transfer.
type TransferAmount struct {
	Total, Processed, Remaining, BytesPerSecond uint64
}
