// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package migrate

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"k8s.io/utils/ptr"
	"libvirt.org/go/libvirtxml"
	"sigs.k8s.io/controller-runtime/pkg/log"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/migrate/convergence"
	"github.com/vireo-project/vireo/internal/agent/migrate/peer"
	"github.com/vireo-project/vireo/internal/decide/migration/policy"
	"github.com/vireo-project/vireo/internal/decide/migration/protocol"
	"github.com/vireo-project/vireo/internal/domain"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

const (
	// callTimeout bounds a call to libvirtd during the transfer.
	callTimeout = 15 * time.Second
	// retryInterval is the pause between two requests to an agent that is not ready, and retryTimeout how long they are
	// repeated.
	retryInterval = 500 * time.Millisecond
	retryTimeout  = time.Minute
)

// run transfers a guest, and then has the migration continue: at the target if the guest migrated.
func (t *Transfers) run(ctx context.Context, transfer *Transfer) {
	a := transfer.attempt()
	ctx = log.IntoContext(ctx,
		log.Log.WithName("migration").WithValues("vmi", a.VMI, "migration", a.UID, "target", a.TargetNode))
	err := t.transferGuest(ctx, transfer, a)
	migrated := transfer.State().Migrated || isMigrated(ctx, transfer, err)
	if !migrated && err == nil {
		err = errors.New("libvirt ended the transfer and kept the guest")
	}
	if migrated {
		err = nil
	}
	transfer.mu.Lock()
	if err != nil && transfer.cancel != "" {
		err = &CanceledError{Reason: transfer.cancel}
	}
	transfer.state.Running, transfer.state.Err = false, err
	forgotten := transfer.forgotten
	transfer.mu.Unlock()
	if forgotten {
		t.Forget(a.UID)
	}
	if ctx.Err() != nil {
		// The process ends. The next one reads the guest's state from libvirt.
		return
	}
	if migrated {
		t.setMigrated(ctx, transfer)
	} else {
		log.FromContext(ctx).Info("The guest was not migrated", "error", err.Error())
	}
	t.Enqueue(a.VMI)
}

// setMigrated records that the source's guest can never run again, and calls OnMigrated the first time.
func (t *Transfers) setMigrated(ctx context.Context, transfer *Transfer) {
	transfer.mu.Lock()
	known := transfer.state.Migrated
	transfer.state.Migrated = true
	transfer.mu.Unlock()
	if known || ctx.Err() != nil {
		return
	}
	t.wg.Go(func() {
		t.OnMigrated(ctx, transfer.vmi)
		if ctx.Err() == nil {
			t.recordSummary(ctx, transfer)
		}
		t.Enqueue(transfer.attempt().VMI)
	})
}

// isMigrated reads from libvirt whether the guest migrated, whatever the transfer returned: a response can get lost.
func isMigrated(ctx context.Context, transfer *Transfer, transferErr error) bool {
	// If the process ends, and its connections with it, this is not known and not used.
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	state, err := transfer.source.SourceState(ctx, transfer.domainName())
	if err != nil {
		// The launcher ends with its guest, and may be gone already, after libvirt has confirmed the migration.
		return transferErr == nil
	}
	return state.Domain == protocol.SourceMigrated || (state.Domain == protocol.SourceEnded && transferErr == nil)
}

// transferGuest gets the destination, checks it and has libvirt transfer the guest.
func (t *Transfers) transferGuest(ctx context.Context, transfer *Transfer, a peer.Attempt) error {
	destination, err := t.destination(ctx, transfer, a)
	if err != nil {
		return err
	}
	live, err := transfer.source.LiveXML(ctx, transfer.domainName())
	if err != nil {
		return err
	}
	built, err := readDestination(ctx, transfer.vmi, destination)
	if err != nil {
		return err
	}
	request, err := t.request(transfer, a, destination, live, built)
	if err != nil {
		return err
	}
	if err := t.verifyImages(ctx, transfer, a, destination, live, built); err != nil {
		return err
	}
	request.OnQEMUExit = func() { t.setMigrated(ctx, transfer) }
	request.OnPaused = func(since time.Time) { t.setPaused(ctx, transfer, since) }
	if destination.TLS != nil {
		if err := transfer.source.PutMigrationTLS(ctx, *destination.TLS); err != nil {
			return fmt.Errorf("write the certificate of QEMU: %w", err)
		}
		defer func() {
			if err := transfer.source.RemoveMigrationTLS(ctx); err != nil {
				log.FromContext(ctx).V(3).Info("The certificate of a migration that has ended was not removed", "error",
					err.Error())
			}
		}()
	}
	if transfer.isCanceled() {
		return errors.New("canceled")
	}
	// The watch ends with the transfer, and may end it.
	transferring, stop := context.WithCancel(ctx)
	defer stop()
	t.wg.Go(func() { t.watch(transferring, transfer, stop) })
	return transfer.source.Transfer(transferring, *request)
}

// destination returns the destination, and waits for the target's agent if it is restarting.
func (t *Transfers) destination(ctx context.Context, transfer *Transfer, a peer.Attempt) (*peer.Destination, error) {
	var destination *peer.Destination
	err := t.retry(ctx, transfer, func() (err error) {
		destination, err = t.Peer.Destination(ctx, a)
		return err
	})
	return destination, err
}

// retry repeats a request to the target's agent while it may be restarting, for retryTimeout from the first failure on.
func (t *Transfers) retry(ctx context.Context, transfer *Transfer, request func() error) error {
	var until time.Time
	for {
		err := request()
		if until.IsZero() {
			until = t.now().Add(retryTimeout)
		}
		if err == nil || !peer.IsTemporary(err) || transfer.isCanceled() || !t.now().Before(until) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(retryInterval):
		}
	}
}

// IsPlain reports whether a migration's configuration disables encryption.
func IsPlain(options *v1.VMIMConfigurationOptions) bool {
	return options != nil && ptr.Deref(options.DisableTLS, false)
}

// errPlain fails a migration whose target would receive the guest's memory unencrypted although the configuration does
// not disable TLS.
var errPlain = errors.New(
	"the target's agent has no certificates for the guest's memory, and the migration's configuration does not disable TLS")

// readDestination checks a destination and returns the domain that the target's agent built.
func readDestination(
	ctx context.Context, vmi *v1.VirtualMachineInstance, d *peer.Destination,
) (*libvirtxml.Domain, error) {
	if _, err := netip.ParseAddr(d.Address); err != nil {
		// It becomes a part of a URI.
		return nil, fmt.Errorf("the address of the target's launcher Pod: %w", err)
	}
	if (d.TLS == nil || d.TLSName == "") && !IsPlain(vmi.Status.MigrationState.VMIMConfigurationOptions) {
		return nil, errPlain
	}
	built := &libvirtxml.Domain{}
	if err := hypervisor.ReadXML(ctx, d.Domain, built); err != nil {
		return nil, fmt.Errorf("read the domain that the target's agent built: %w", err)
	}
	return built, nil
}

// request describes the transfer for libvirt, and sets its rules.
func (t *Transfers) request(
	transfer *Transfer, a peer.Attempt, d *peer.Destination, live, built *libvirtxml.Domain,
) (*hypervisor.TransferRequest, error) {
	options := transfer.vmi.Status.MigrationState.VMIMConfigurationOptions
	target, err := domain.ForTarget(live, built)
	if err != nil {
		return nil, fmt.Errorf("describe the guest at the target: %w", err)
	}
	r := &hypervisor.TransferRequest{
		Domain: transfer.domainName(), XML: target, Address: d.Address, TLSName: d.TLSName,
		DialTarget: func(ctx context.Context) (net.Conn, error) { return t.Peer.Tunnel(ctx, a) },
		CopyDisks:  disksToCopy(transfer.vmi, live),
	}
	configure(r, transfer.vmi, options)
	transfer.rules = convergence.NewRules(options, policy.MaxBytes(transfer.vmi), t.DetectStalls != nil &&
		t.DetectStalls())
	if r.PostCopy && !d.PostCopy {
		// The target's QEMU would refuse the whole migration.
		r.PostCopy = false
		transfer.rules = transfer.rules.WithoutPostCopy()
		t.recordEvent(transfer.vmi, v1.Migrating, "ForgoPostCopy", fmt.Sprintf(
			"The migration continues without post-copy: launcher Pod %s on node %s has no %s, which Linux has since 6.1.",
			transfer.vmi.Status.MigrationState.TargetPod, a.TargetNode, launcherpod.PostCopyDevice))
	}
	if r.Compression != "" {
		t.recordEvent(transfer.vmi, v1.Migrating, "Compress",
			fmt.Sprintf("The guest's memory is compressed (%s): %s.", r.Compression, whyCompressed(options)))
	}
	r.BeforeFinish = moveState(transfer, t.Peer)
	r.KeepBitmaps = t.keepBitmaps(transfer, t.Peer, d, r, live, built)
	r.MaxDowntime = convergence.New(transfer.rules, t.now()).Downtime()
	return r, nil
}

// configure sets what the migration's configuration contains.
func configure(r *hypervisor.TransferRequest, vmi *v1.VirtualMachineInstance, options *v1.VMIMConfigurationOptions) {
	if options == nil {
		return
	}
	r.AutoConverge, r.PostCopy = ptr.Deref(options.AllowAutoConverge, false), ptr.Deref(options.AllowPostCopy, false)
	r.Unsafe = ptr.Deref(options.UnsafeMigrationOverride, false)
	if q := options.BandwidthPerMigration; q != nil && q.Sign() > 0 {
		r.Bandwidth = uint64(q.Value())
	}
	// QEMU refuses several connections together with a post-copy (migrate_caps_check in migration/options.c, up to 10.0).
	// A post-copy is more certain to help than compression.
	if r.PostCopy {
		return
	}
	method := v1.MigrationCompressionNone
	if requested := requestedCompression(options); requested != nil {
		method = *requested
	} else if r.Bandwidth >= compressedFrom && r.Bandwidth <= compressedUpTo && !vmi.IsCPUDedicated() {
		method = v1.MigrationCompressionZstd
	}
	if method == v1.MigrationCompressionNone {
		return
	}
	// QEMU compresses with these methods only what it sends over separate connections.
	r.Compression, r.Parallel = string(method), compressedChannels
	if r.Bandwidth > 0 {
		r.Parallel, r.Bandwidth = 1, packetBandwidth(r.Bandwidth)
	}
}

const (
	// compressedChannels is how many connections compressed memory is sent over. QEMU's default of multifd-channels.
	compressedChannels = 2
	// compressedFrom and compressedUpTo are the bandwidths in bytes per second between which memory is compressed by
	// default: there the link is slower than the compression. ADR 0034 has the figures.
	compressedFrom, compressedUpTo = 2 * packetRate, 128 << 20
	// packetRate is the rate of one packet of 512 KiB every 100 ms, in bytes per second.
	packetRate = 5 << 20
)

// packetBandwidth is the limit that keeps QEMU 10.0 within a bandwidth over one connection with packets
// (migration/multifd.c). Every 100 ms QEMU sends until the limit is exceeded, and then the packet that waits.
func packetBandwidth(bandwidth uint64) uint64 {
	return max(bandwidth/packetRate, 2)*packetRate - packetRate
}

// requestedCompression is what the configuration contains, or nil.
func requestedCompression(options *v1.VMIMConfigurationOptions) *v1.MigrationCompression {
	if options.ExperimentalMigrationOptions == nil {
		return nil
	}
	return options.ExperimentalMigrationOptions.Compression
}

// whyCompressed explains why memory is compressed.
func whyCompressed(options *v1.VMIMConfigurationOptions) string {
	if requestedCompression(options) != nil {
		return "the migration's configuration requests it"
	}
	return fmt.Sprintf("no more than %s may be sent a second", options.BandwidthPerMigration)
}
