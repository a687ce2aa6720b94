// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package launcher

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/libvirtwire"
)

// Await waits for a guest that migrates to this Pod.
type Await struct {
	// Domain is the name of the guest's domain.
	Domain string
	// Timeout is how long to wait.
	Timeout time.Duration
}

// domainWatcher is the part of libvirtwire.Client that Await needs.
type domainWatcher interface {
	SubscribeLifecycle(ctx context.Context) error
	Lookup(ctx context.Context, name string) (libvirtwire.Domain, error)
	State(ctx context.Context, domain libvirtwire.Domain) (libvirtwire.State, int32, error)
	Events() <-chan libvirtwire.Event
}

// Run returns when the Pod has the guest, or with an error after the timeout.
func (a Await) Run(ctx context.Context) error {
	if a.Domain == "" || a.Timeout <= 0 {
		return errors.New("the command needs --domain, and a --timeout-seconds of 1 or more")
	}
	ctx, cancel := context.WithTimeout(ctx, a.Timeout)
	defer cancel()
	client, err := libvirtwire.Dial(ctx, launcherpod.LibvirtSocket)
	if err != nil {
		return fmt.Errorf("connect to libvirtd: %w", err)
	}
	defer client.Close()
	return a.runWith(ctx, client)
}

func (a Await) runWith(ctx context.Context, libvirtd domainWatcher) error {
	// First: a change after the state was read causes an event.
	if err := libvirtd.SubscribeLifecycle(ctx); err != nil {
		return fmt.Errorf("subscribe to events of the guest: %w", err)
	}
	for {
		here, err := a.isHere(ctx, libvirtd)
		if here || err != nil {
			return err
		}
		select {
		case _, open := <-libvirtd.Events():
			if !open {
				return errors.New("the connection to libvirtd has ended")
			}
		case <-ctx.Done():
			return fmt.Errorf("the guest is not in this Pod after %s", a.Timeout)
		}
	}
}

// isHere reports whether the Pod has the guest. While a migration transfers it, its QEMU runs here and libvirt reports it as paused.
func (a Await) isHere(ctx context.Context, libvirtd domainWatcher) (bool, error) {
	domain, err := libvirtd.Lookup(ctx, a.Domain)
	var state libvirtwire.State
	var reason int32
	if err == nil {
		state, reason, err = libvirtd.State(ctx, domain)
	}
	var refused *libvirtwire.Error
	switch {
	case errors.As(err, &refused) && refused.Code == libvirtwire.CodeNoDomain:
		return false, nil
	case err != nil:
		return false, fmt.Errorf("read the state of the guest: %w", err)
	}
	switch state {
	case libvirtwire.StateRunning, libvirtwire.StateBlocked, libvirtwire.StatePMSuspended:
		return true, nil
	case libvirtwire.StatePaused:
		switch libvirtwire.PausedReason(reason) {
		case libvirtwire.PausedMigration, libvirtwire.PausedStartingUp, libvirtwire.PausedPostcopy, libvirtwire.PausedShuttingDown:
			return false, nil
		default:
			// A user has paused it, or it has stopped by itself.
			return true, nil
		}
	default:
		return false, nil
	}
}
