// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package handover

import (
	"context"
	"sync"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/handler/hypervisor"
)

// CanceledError is the end of a copy that was canceled.
type CanceledError struct {
	// Reason is that of Cancel.
	Reason string
}

// Error is the reason.
func (c *CanceledError) Error() string { return c.Reason }

// Copy is one guest that is or was copied.
type Copy struct {
	vmi     *v1.VirtualMachineInstance
	machine Machine
	// pod is the launcher Pod that the guest leaves.
	pod hypervisor.PodRef
	// digests are those that its spec names images by, by the directories where they are mounted.
	digests map[string]string
	// rules are set before the copy is watched.
	rules rules

	mu     sync.Mutex
	state  CopyState
	times  times
	cancel string
	// interrupt ends what goes on before libvirt copies, or is nil.
	interrupt context.CancelFunc
	// forgotten says that nobody needs it once it has ended.
	forgotten bool
}

// CopyState is how a copy is.
type CopyState struct {
	// Running says that libvirt has not returned yet.
	Running bool
	// HandedOver says that the guest can never run here again. libvirt may not have returned yet.
	HandedOver bool
	// Err is why the copying ended otherwise.
	Err error
	// Progress is how far it was when it was looked at last, or nil.
	Progress *hypervisor.CopyProgress
	// Dirtied is the most memory in bytes that the guest was ever seen to change in a second.
	Dirtied uint64
}

// State is how the copy is now.
func (c *Copy) State() CopyState {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state
}

func (c *Copy) change(do func(*CopyState)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	do(&c.state)
}

// Cancel ends the copying, for a reason that is told.
func (c *Copy) Cancel(ctx context.Context, why string) error {
	c.mu.Lock()
	if c.cancel == "" {
		c.cancel = why
	}
	if c.interrupt != nil {
		c.interrupt()
	}
	c.mu.Unlock()
	return c.machine.CancelCopy(ctx, domainOf(c.vmi))
}

// cancelable is a context that ends when the copy is canceled, too.
func (c *Copy) cancelable(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.interrupt = cancel
	if c.cancel != "" {
		cancel()
	}
	return ctx, cancel
}

func (c *Copy) isCanceled() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cancel != ""
}

// isPerformed says that libvirt has copied all but what a post-copy still fetches: nothing helps any more, nor is needed.
func (c *Copy) isPerformed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.times.stopped.IsZero()
}
