// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package migrate

import (
	"context"
	"io"
	"net"
	"time"

	"libvirt.org/go/libvirtxml"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/migrate/peer"
	"github.com/vireo-project/vireo/internal/agent/migrate/qemutls"
)

// Peer sends requests to the target's agent.
type Peer interface {
	destinationFinder
	imageReader
	stateKeeper
	bitmapKeeper
}

// destinationFinder returns where to send a guest.
type destinationFinder interface {
	// Destination returns where and how to send the guest.
	Destination(ctx context.Context, a peer.Attempt) (*peer.Destination, error)
	// Tunnel connects to the libvirtd of the target's Pod.
	Tunnel(ctx context.Context, a peer.Attempt) (net.Conn, error)
}

// imageReader returns the checksums of the images in the target's Pod.
type imageReader interface {
	Images(ctx context.Context, a peer.Attempt) (*peer.Images, error)
}

// stateKeeper stores the guest's persistent state on the target's claim.
type stateKeeper interface {
	// KeepState sends the persistent EFI variables, and returns when all of the guest's persistent state is on the
	// target's claim.
	KeepState(ctx context.Context, a peer.Attempt, nvram []byte) error
}

// bitmapKeeper stores the bitmaps of the guest's tracked disks in the target's overlays.
type bitmapKeeper interface {
	// KeepBitmaps sends the bitmaps. After an error other than a permanent refusal they may still be written.
	KeepBitmaps(ctx context.Context, a peer.Attempt, disks []peer.DiskBitmaps) error
}

// Source is the connection to the libvirtd of the guest that migrates.
type Source interface {
	guestReader
	overlayReader
	transferrer
	transferTuner
	certificateStore
}

// guestReader reads the guest.
type guestReader interface {
	// LiveXML returns the running domain in the form that another libvirtd accepts.
	LiveXML(ctx context.Context, domain string) (*libvirtxml.Domain, error)
	// SourceState returns the state of the migration's source.
	SourceState(ctx context.Context, domain string) (hypervisor.SourceState, error)
	// ReadNVRAM reads the file with the persistent EFI variables.
	ReadNVRAM(ctx context.Context, file string) ([]byte, error)
}

// overlayReader reads the overlays of the guest's tracked disks.
type overlayReader interface {
	// ReadTracked calls read with an overlay, and returns its error. read may still run when the context is done.
	ReadTracked(ctx context.Context, name string, read func(io.ReaderAt) error) error
}

// transferrer runs libvirt's migration job.
type transferrer interface {
	// Transfer transfers the guest. The end of the context ends the connections that it needs.
	Transfer(ctx context.Context, request hypervisor.TransferRequest) error
	// TransferProgress returns the progress, or nil if there is no job.
	TransferProgress(ctx context.Context, domain string) (*hypervisor.TransferProgress, error)
	// CancelTransfer ends the job.
	CancelTransfer(ctx context.Context, domain string) error
}

// transferTuner changes how libvirt's migration job ends.
type transferTuner interface {
	// StartPostCopy lets the target's guest run with what was transferred.
	StartPostCopy(ctx context.Context, domain string) error
	// SetMaxDowntime sets how long the guest may be paused at the end.
	SetMaxDowntime(ctx context.Context, domain string, limit time.Duration) error
}

// certificateStore stores the certificates with which QEMU encrypts the transfer.
type certificateStore interface {
	PutMigrationTLS(ctx context.Context, files qemutls.Files) error
	RemoveMigrationTLS(ctx context.Context) error
}
