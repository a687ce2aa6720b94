// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package hypervisor

import (
	"context"
	"net"
	"time"

	"libvirt.org/go/libvirtxml"

	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/migration"
)

// Ports of the target's Pod. The guest's NAT leaves them alone.
const (
	// MigrationMemoryPort takes the guest's memory.
	MigrationMemoryPort = launcherpod.FirstMigrationPort
	// MigrationDisksPort takes the disks that are copied.
	MigrationDisksPort = launcherpod.LastMigrationPort
)

// SourceState is what libvirt says of a guest that is to move.
type SourceState struct {
	// Domain is the guest's state.
	Domain migration.SourceDomain
	// Job says that libvirt has a migration job. One that this process has not begun is an orphan.
	Job bool
}

// CopyRequest describes how a guest is copied to another launcher.
type CopyRequest struct {
	// Domain is the domain's name, here and there.
	Domain string
	// Target connects to the target's libvirtd. The connection is closed when the copying is over.
	Target func(context.Context) (net.Conn, error)
	// Dead is called when the target has completed the guest and the QEMU here has ended since, before libvirt says so. It is not
	// called when that cannot be seen. Copy returns after it.
	Dead func()
	// Stopped is called when all is copied, with the time since which the guest stands still. It must not block.
	Stopped func(since time.Time)
	// Settle is called when all is copied and the guest here stands still, before the target completes it: what it does is done
	// before the guest can be anybody else's. An error ends the migration, and the guest stays; in a post-copy, which cannot be
	// ended any more, it changes nothing. Nil means that there is nothing to do.
	Settle func(ctx context.Context) error
	// XML is the domain as it is to be at the target.
	XML *libvirtxml.Domain
	// Address is where the target's QEMU listens.
	Address string
	// MemoryPort and DisksPort are the ports; 0 means the constants of this package.
	MemoryPort, DisksPort uint16
	// TLSName is the name in the certificate of the target's QEMU. Without one nothing is encrypted.
	TLSName string
	// CopyDisks are the disks that are copied, by their target's name.
	CopyDisks []string
	// AutoConverge slows the guest down when it changes memory faster than it can be copied.
	AutoConverge bool
	// PostCopy allows StartPostCopy.
	PostCopy bool
	// Parallel is how many connections take the memory; 0 leaves that to one.
	Parallel uint
	// Compression is the method with which memory is compressed: zlib or zstd with Parallel, xbzrle without, or none.
	Compression string
	// Unsafe copies although libvirt thinks that a disk's cache makes it dangerous.
	Unsafe bool
	// MaxDowntime is how long the guest may stand still; 0 leaves it to QEMU.
	MaxDowntime time.Duration
	// Bandwidth is how many bytes may be copied in a second; 0 means as many as there can be.
	Bandwidth uint64
}

// CopyProgress is how far the copying of a guest is.
type CopyProgress struct {
	// PostCopy says that the target's guest runs and fetches what it lacks.
	PostCopy bool
	// Elapsed is how long it goes on.
	Elapsed time.Duration
	// Downtime is how long the guest stood still, or is expected to.
	Downtime time.Duration
	// Setup is how long QEMU took to begin.
	Setup time.Duration
	// Memory and Disk say how much there is of either.
	Memory, Disk CopyAmount
	// DirtyBytesPerSecond is how fast the guest changes memory.
	DirtyBytesPerSecond uint64
	// Iteration counts the passes over memory.
	Iteration uint64
	// Throttle is by how many percent the guest is slowed down.
	Throttle int
}

// CopyAmount is how much of something is to be copied.
type CopyAmount struct {
	Total, Processed, Remaining, BytesPerSecond uint64
}
