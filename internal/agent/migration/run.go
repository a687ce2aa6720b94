// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package migration

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/vireo-project/vireo/internal/agent/migration/peer"
	"github.com/vireo-project/vireo/internal/migration/protocol"
)

const (
	// callTimeout bounds a call to libvirtd during the transfer.
	callTimeout = 15 * time.Second
	// retryInterval is the pause between two requests to an agent that is not ready, and retryTimeout how long they are repeated.
	retryInterval = 500 * time.Millisecond
	retryTimeout  = time.Minute
)

// run transfers a guest, and then has the migration continue: at the target if the guest migrated.
func (t *Transfers) run(ctx context.Context, transfer *Transfer) {
	a := transfer.attempt()
	ctx = log.IntoContext(ctx, log.Log.WithName("migration").WithValues("vmi", a.VMI, "migration", a.UID, "target", a.TargetNode))
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
				log.FromContext(ctx).V(3).Info("The certificate of a migration that has ended was not removed", "error", err.Error())
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
