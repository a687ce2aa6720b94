// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"libvirt.org/go/libvirt"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// startEventLoop registers and runs libvirt's event loop, which must exist before the first connection and
// serves all of them until the process ends.
var startEventLoop = sync.OnceValue(func() error {
	if err := libvirt.EventRegisterDefaultImpl(); err != nil {
		return fmt.Errorf("register libvirt's event loop: %w", err)
	}
	go func() {
		for {
			if err := libvirt.EventRunDefaultImpl(); err != nil {
				log.Log.Error(err, "libvirt's event loop failed, it goes on")
				// A loop that fails at once again must not take the CPU.
				<-time.After(time.Second)
			}
		}
	}()
	return nil
})

// began notes when a state did that another ends. libvirt tells of it again when a post-copy begins, and when that has ended.
func began(state, other *atomic.Int64) {
	if since := state.Load(); since == 0 || since < other.Load() {
		state.Store(time.Now().UnixNano())
	}
}

// Watch calls notify after everything that can change what the agent reports about the domain. It is called once
// per connection, before Guest. notify must not block: all connections share one event loop. What happened is not told, as whoever wants to know asks again.
func (c *Conn) Watch(ctx context.Context, notify func()) error {
	c.notify = notify
	return c.call(ctx, queryTimeout, "register for events", func(l *libvirt.Connect) error {
		for _, register := range []func() (int, error){
			func() (int, error) {
				return l.DomainEventLifecycleRegister(nil,
					func(_ *libvirt.Connect, d *libvirt.Domain, e *libvirt.DomainEventLifecycle) {
						switch e.Event {
						case libvirt.DOMAIN_EVENT_SUSPENDED:
							began(&c.suspended, &c.resumed)
						case libvirt.DOMAIN_EVENT_RESUMED:
							began(&c.resumed, &c.suspended)
							if name, err := d.GetName(); err == nil {
								c.guestResumed(name)
							}
						}
						notify()
					})
			},
			func() (int, error) {
				return l.DomainEventAgentLifecycleRegister(nil,
					func(*libvirt.Connect, *libvirt.Domain, *libvirt.DomainEventAgentLifecycle) {
						c.guestConnected()
						notify()
					})
			},
			func() (int, error) {
				return l.DomainEventIOErrorReasonRegister(nil,
					func(*libvirt.Connect, *libvirt.Domain, *libvirt.DomainEventIOErrorReason) { notify() })
			},
			func() (int, error) {
				// A backup's hooks freeze and thaw the guest in the Pod, and note it there.
				return l.DomainEventMetadataChangeRegister(nil,
					func(*libvirt.Connect, *libvirt.Domain, *libvirt.DomainEventMetadataChange) { notify() })
			},
			func() (int, error) {
				return l.DomainEventBalloonChangeRegister(nil,
					func(*libvirt.Connect, *libvirt.Domain, *libvirt.DomainEventBalloonChange) { notify() })
			},
		} {
			if _, err := register(); err != nil {
				return err
			}
		}
		return nil
	})
}

// missedEvents makes up for events that were too many: what they could have been about is looked at once.
func (c *Conn) missedEvents() {
	c.guestConnected()
	c.notify()
}
