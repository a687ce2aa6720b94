// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"libvirt.org/go/libvirt"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/vireo-project/vireo/internal/handler/hypervisor"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

const (
	// freezeWait is how long the guest may take to write what it has and to stop. Windows allows its writers a minute.
	freezeWait = time.Minute
	// freezeTimeout bounds a freeze and a thaw, with the wait for others that talk to the agent.
	freezeTimeout = freezeWait + (jobWait+4*agentTimeout)*time.Second
	// thawPause is the pause between two attempts to thaw a guest that does not answer.
	thawPause = 10 * time.Second
)

// Freeze freezes the guest's file systems. They are thawed after a while, or by Thaw alone if it is zero. A guest that is
// frozen stays so, for a new while.
func (c *Conn) Freeze(ctx context.Context, domain string, limit time.Duration) error {
	note := hypervisor.Freeze{}
	if limit > 0 {
		note.Thaw = time.Now().Add(limit)
	}
	// The note comes first: an agent that ends between the two leaves a guest that will be thawed.
	if err := c.noteFreeze(ctx, domain, &note); err != nil {
		return err
	}
	defer c.notify()
	err := c.converse(ctx, domain, freezeTimeout, func(ctx context.Context, g guest) error {
		if frozen, err := g.frozen(ctx); err != nil || frozen {
			return err
		}
		_, err := g.ask(ctx, "guest-fsfreeze-freeze", freezeWait)
		return err
	})
	switch {
	case err == nil:
		return nil
	case errors.Is(err, hypervisor.ErrGuestRefused):
		return errors.Join(err, c.noteFreeze(ctx, domain, nil))
	default:
		// The guest may have been told, and freeze although nobody waits for it any more.
		return errors.Join(err, c.noteFreeze(context.WithoutCancel(ctx), domain, &hypervisor.Freeze{Thaw: time.Now()}))
	}
}

// Thaw thaws the guest's file systems. A guest that is not frozen is left alone: its hooks must not run twice.
func (c *Conn) Thaw(ctx context.Context, domain string) error {
	err := c.converse(ctx, domain, freezeTimeout, func(ctx context.Context, g guest) error {
		if frozen, err := g.frozen(ctx); err == nil && !frozen {
			return nil
		}
		_, err := g.ask(ctx, "guest-fsfreeze-thaw", freezeWait)
		return err
	})
	if err != nil {
		return err
	}
	defer c.notify()
	return c.noteFreeze(ctx, domain, nil)
}

// noteFreeze writes the note into the running domain's metadata; nil takes it away.
func (c *Conn) noteFreeze(ctx context.Context, domain string, note *hypervisor.Freeze) error {
	text := ""
	if note != nil {
		text = note.Note()
	}
	return c.setNote(ctx, domain, "note the freeze", text, launcherpod.FreezePrefix, launcherpod.FreezeURI)
}

// PauseProbes notes in the running domain's metadata whether probes by guestAgentPing are paused.
func (c *Conn) PauseProbes(ctx context.Context, domain string, paused bool) error {
	text := ""
	if paused {
		text = launcherpod.ProbesNote
	}
	return c.setNote(ctx, domain, "note that probes are paused", text, launcherpod.ProbesPrefix, launcherpod.ProbesURI)
}

// setNote writes an element into the running domain's metadata; an empty one takes it away.
func (c *Conn) setNote(ctx context.Context, domain, what, element, prefix, uri string) error {
	err := c.onDomain(ctx, domain, what, func(d *libvirt.Domain) error {
		return d.SetMetadata(libvirt.DOMAIN_METADATA_ELEMENT, element, prefix, uri, libvirt.DOMAIN_AFFECT_LIVE)
	})
	if element == "" && isCode(err, libvirt.ERR_NO_DOMAIN_METADATA) {
		return nil
	}
	return err
}

// thawer thaws a guest when its time has come.
type thawer struct {
	mu   sync.Mutex
	at   time.Time
	stop context.CancelFunc
	// kick makes it look whether the guest is frozen at all, as after a reset.
	kick chan struct{}
}

// KeepThaw makes the guest be thawed when its freeze says, in its own time: a guest that does not answer must not hold up
// the reconciler. Nil, and a freeze without a time, end that.
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
	ctx, stop := context.WithCancel(c.relay.ctx)
	t.stop = stop
	go c.thawAt(ctx, domain, at)
}

// thawAt waits until a time and then thaws the guest, whatever it takes.
func (c *Conn) thawAt(ctx context.Context, domain string, at time.Time) {
	logger := log.Log.WithName("hypervisor").WithValues("vmi", c.pod.VMI)
	for next := at; ; {
		select {
		case <-ctx.Done():
			return
		case <-c.Done():
			return
		case <-c.thaw.kick:
			if err := c.dropStaleFreeze(ctx, domain); err != nil {
				logger.V(4).Info("Cannot see whether a guest is frozen", "error", err.Error())
			}
			continue
		case <-time.After(max(time.Until(next), 0)):
		}
		err := c.Thaw(ctx, domain)
		if err == nil || errors.Is(err, hypervisor.ErrNoDomain) || errors.Is(err, hypervisor.ErrNotRunning) {
			logger.Info("Thawed a guest whose time was up")
			return
		}
		next = time.Now().Add(thawPause)
		logger.Info("A guest whose time is up does not thaw", "error", err.Error(), "retryIn", thawPause.String())
	}
}

// dropStaleFreeze forgets the freeze of a guest that is not frozen any more, such as one that started anew.
func (c *Conn) dropStaleFreeze(ctx context.Context, domain string) error {
	var frozen bool
	err := c.converse(ctx, domain, askTimeout, func(ctx context.Context, g guest) (err error) {
		frozen, err = g.frozen(ctx)
		return err
	})
	if err != nil || frozen {
		return err
	}
	defer c.notify()
	if err := c.noteFreeze(ctx, domain, nil); err != nil {
		return fmt.Errorf("forget a freeze: %w", err)
	}
	return nil
}
