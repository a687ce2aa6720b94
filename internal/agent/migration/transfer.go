// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package migration

import (
	"context"
	"sync"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/migration/convergence"
	"github.com/vireo-project/vireo/internal/agent/migration/peer"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// CanceledError is the error of a transfer that was canceled.
type CanceledError struct {
	// Reason is that of Cancel.
	Reason string
}

// Error is the reason.
func (c *CanceledError) Error() string { return c.Reason }

// Transfer is the transfer of one guest, running or ended.
type Transfer struct {
	vmi    *v1.VirtualMachineInstance
	source Source
	// pod is the source's launcher Pod.
	pod hypervisor.PodRef
	// digests are the digests by which its spec names images, by the directories where they are mounted.
	digests map[string]string
	// rules are set before the transfer is watched.
	rules convergence.Rules

	mu     sync.Mutex
	state  State
	times  times
	cancel string
	// interrupt ends what runs before libvirt's migration job, or is nil.
	interrupt context.CancelFunc
	// forgotten reports whether it is removed once it has ended.
	forgotten bool
}

// State is the state of a transfer.
type State struct {
	// Running reports whether libvirt has not returned yet.
	Running bool
	// Migrated reports whether the source's guest can never run again. libvirt may not have returned yet.
	Migrated bool
	// Err is why the transfer ended without that.
	Err error
	// Progress is the progress that was read last, or nil.
	Progress *hypervisor.TransferProgress
	// MaxDirtyRate is the most memory in bytes that the guest changed in a second, as far as it was measured.
	MaxDirtyRate uint64
}

// State returns the current state.
func (t *Transfer) State() State {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.state
}

func (t *Transfer) change(do func(*State)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	do(&t.state)
}

// Cancel ends the transfer. Its error is then a CanceledError with the reason of the first call.
func (t *Transfer) Cancel(ctx context.Context, reason string) error {
	t.mu.Lock()
	if t.cancel == "" {
		t.cancel = reason
	}
	if t.interrupt != nil {
		t.interrupt()
	}
	t.mu.Unlock()
	return t.source.CancelTransfer(ctx, t.domainName())
}

// cancelable returns a context that also ends when the transfer is canceled.
func (t *Transfer) cancelable(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.interrupt = cancel
	if t.cancel != "" {
		cancel()
	}
	return ctx, cancel
}

func (t *Transfer) isCanceled() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.cancel != ""
}

// isPerformed reports whether all is transferred but what a post-copy still fetches: no step can help any more.
func (t *Transfer) isPerformed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !t.times.paused.IsZero()
}

func (t *Transfer) attempt() peer.Attempt { return peer.AttemptOf(t.vmi) }

func (t *Transfer) domainName() string { return launcherpod.DomainName(t.vmi.Namespace, t.vmi.Name) }
