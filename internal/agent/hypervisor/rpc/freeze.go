// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"libvirt.org/go/libvirt"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

const (
	// freezeWait is how long the guest may take to flush and freeze its file systems. Windows allows its writers a minute.
	freezeWait = time.Minute
	// freezeTimeout bounds a freeze and a thaw, with the wait for other requests to the guest agent.
	freezeTimeout = freezeWait + (jobWait+4*agentTimeout)*time.Second
	// thawPause is the time between two attempts to thaw a guest that does not respond.
	thawPause = 10 * time.Second
)

// Freeze freezes the guest's file systems until Thaw is called, or at most for limit unless that is zero. If they are
// frozen already, the limit starts again. It succeeds for a guest without file systems that can be frozen, as in
// KubeVirt, and leaves no freeze. When it returns, the persistent state of TPM and EFI is on its disk, too.
func (c *Conn) Freeze(ctx context.Context, domain string, limit time.Duration) error {
	release, err := c.lockFreezes(ctx)
	if err != nil {
		return err
	}
	defer release()
	// As long as nothing was sent that could freeze the guest, there is nothing to note: no thaw could end such a note
	// without the agent.
	frozen, err := c.Frozen(ctx, domain)
	if err != nil {
		return err
	}
	note := hypervisor.Freeze{}
	if limit > 0 {
		note.Thaw = time.Now().Add(limit).Truncate(time.Second)
	}
	// The note is written first, so that the guest is thawed even if this process ends in between.
	if err := c.recordFreeze(ctx, domain, &note); err != nil {
		return err
	}
	defer c.notify()
	// The timer of an earlier freeze is canceled before the lock is released, so that it cannot thaw this one.
	c.KeepThaw(domain, &note)
	if !frozen {
		err = c.converse(ctx, domain, freezeTimeout, func(ctx context.Context, g guest) error {
			count, err := g.count(ctx, "guest-fsfreeze-freeze")
			if frozen = count > 0; err == nil && !frozen {
				frozen, err = g.frozen(ctx)
			}
			return err
		})
	}
	if err == nil {
		err = c.syncState(ctx)
	}
	switch {
	case err == nil && frozen:
		return nil
	case err == nil:
		return c.recordFreeze(ctx, domain, nil)
	case errors.Is(err, hypervisor.ErrGuestRefused):
		return errors.Join(err, c.recordFreeze(ctx, domain, nil))
	default:
		// The guest may have received the request and may still freeze.
		return errors.Join(err, c.recordFreeze(context.WithoutCancel(ctx), domain, &hypervisor.Freeze{Thaw: time.Now()}))
	}
}

// Thaw thaws the guest's file systems after a freeze on a user's request. It does nothing if they are not frozen,
// because the guest's hooks must not run twice. If the guest is frozen for a snapshot, too, only the note of the user's
// freeze is removed, and the guest is thawed after the snapshot. Without such a note, it is thawed, and the snapshot is
// not consistent.
func (c *Conn) Thaw(ctx context.Context, domain string) error {
	release, err := c.lockFreezes(ctx)
	if err != nil {
		return err
	}
	defer release()
	var stays bool
	err = c.readFreezes(ctx, domain, func(d *hypervisor.Domain) { stays = d.Freeze() != nil && d.FrozenForSnapshot() })
	if err != nil {
		return err
	}
	if !stays {
		err := c.converse(ctx, domain, freezeTimeout, func(ctx context.Context, g guest) error {
			if frozen, err := g.frozen(ctx); err == nil && !frozen {
				return nil
			}
			_, err := g.execute(ctx, "guest-fsfreeze-thaw", freezeWait)
			return err
		})
		if err != nil {
			return err
		}
	}
	defer c.notify()
	return c.recordFreeze(ctx, domain, nil)
}

// lockFreezes waits until no other freeze or thaw of the guest is in progress, and prevents them until release is
// called.
func (c *Conn) lockFreezes(ctx context.Context) (release func(), err error) {
	if err := c.thaw.lock.Acquire(ctx, 1); err != nil {
		return nil, fmt.Errorf("wait for another freeze or thaw of the guest: %w", err)
	}
	return func() { c.thaw.lock.Release(1) }, nil
}

// readFreezes calls a function with the running domain, whose metadata name the freezes of the guest.
func (c *Conn) readFreezes(ctx context.Context, domain string, read func(*hypervisor.Domain)) error {
	ctx, end := c.startConversation(ctx)
	defer end()
	d, err := c.Domain(ctx, domain)
	if err != nil {
		return err
	}
	if !d.Active() {
		return fmt.Errorf("read the freezes of the guest: %w", hypervisor.ErrNotRunning)
	}
	read(d)
	return nil
}

// recordFreeze writes a freeze to the running domain's metadata; nil removes it.
func (c *Conn) recordFreeze(ctx context.Context, domain string, note *hypervisor.Freeze) error {
	text := ""
	if note != nil {
		text = note.Note()
	}
	return c.setMetadata(ctx, domain, "write the freeze to the domain's metadata", text, launcherpod.FreezePrefix,
		launcherpod.FreezeURI)
}

// PauseProbes writes to the running domain's metadata whether guestAgentPing probes are paused.
func (c *Conn) PauseProbes(ctx context.Context, domain string, paused bool) error {
	text := ""
	if paused {
		text = launcherpod.ProbesNote
	}
	return c.setMetadata(ctx, domain, "write to the domain's metadata whether probes are paused", text,
		launcherpod.ProbesPrefix, launcherpod.ProbesURI)
}

// setMetadata writes an element to the running domain's metadata; an empty one removes it.
func (c *Conn) setMetadata(ctx context.Context, domain, what, element, prefix, uri string) error {
	err := c.onDomain(ctx, domain, what, func(d *libvirt.Domain) error {
		return d.SetMetadata(libvirt.DOMAIN_METADATA_ELEMENT, element, prefix, uri, libvirt.DOMAIN_AFFECT_LIVE)
	})
	if element == "" && isCode(err, libvirt.ERR_NO_DOMAIN_METADATA) {
		return nil
	}
	return err
}

// thawer thaws a guest at the time that its freeze names.
type thawer struct {
	// lock is held while a freeze starts or ends: both change the guest and the note, one after the other.
	lock *semaphore.Weighted

	mu   sync.Mutex
	at   time.Time
	stop context.CancelFunc
	// trigger makes it check whether the guest is still frozen, which it is not after a reset.
	trigger chan struct{}
}

func newThawer() thawer {
	return thawer{lock: semaphore.NewWeighted(1), trigger: make(chan struct{}, 1)}
}

// KeepThaw schedules the thaw of a freeze. It runs in its own goroutine, so that a guest that does not respond does not
// block the reconciler. Nil, and a freeze without a time, cancel it.
func (c *Conn) KeepThaw(domain string, freeze *hypervisor.Freeze) {
	t := &c.thaw
	t.mu.Lock()
	defer t.mu.Unlock()
	var at time.Time
	if freeze != nil {
		at = freeze.Thaw
	}
	if at.Equal(t.at) {
		return
	}
	if t.stop != nil {
		t.stop()
		t.stop = nil
	}
	if t.at = at; at.IsZero() {
		return
	}
	// A guest agent that connected earlier, such as at boot, proves nothing about this freeze.
	select {
	case <-t.trigger:
	default:
	}
	ctx, stop := context.WithCancel(c.relay.ctx)
	t.stop = stop
	go c.thawAt(ctx, domain, at)
}

// thawAt waits until a time and then tries to thaw the guest until that succeeds.
func (c *Conn) thawAt(ctx context.Context, domain string, at time.Time) {
	logger := log.Log.WithName("hypervisor").WithValues("vmi", c.pod.VMI)
	for next := at; ; {
		select {
		case <-ctx.Done():
			return
		case <-c.Done():
			return
		case <-c.thaw.trigger:
			if err := c.dropStaleFreeze(ctx, domain); err != nil {
				logger.V(4).Info("Cannot read whether a guest is frozen", "error", err.Error())
			}
			continue
		case <-time.After(max(time.Until(next), 0)):
		}
		err := c.Thaw(ctx, domain)
		if ctx.Err() != nil {
			return
		}
		if err == nil || errors.Is(err, hypervisor.ErrNoDomain) || errors.Is(err, hypervisor.ErrNotRunning) {
			logger.Info("Thawed a guest after the limit of its freeze")
			return
		}
		next = time.Now().Add(thawPause)
		logger.Info("Cannot thaw a guest after the limit of its freeze", "error", err.Error(), "retryIn", thawPause.String())
	}
}

// dropStaleFreeze removes the note of a guest that is not frozen any more, for example because it rebooted.
func (c *Conn) dropStaleFreeze(ctx context.Context, domain string) error {
	release, err := c.lockFreezes(ctx)
	if err != nil {
		return err
	}
	defer release()
	if frozen, err := c.Frozen(ctx, domain); err != nil || frozen {
		return err
	}
	defer c.notify()
	if err := c.recordFreeze(ctx, domain, nil); err != nil {
		return fmt.Errorf("remove a freeze that has ended: %w", err)
	}
	return nil
}
