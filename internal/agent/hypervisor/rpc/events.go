// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"libvirt.org/go/libvirt"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// initLibvirt prepares libvirt's client library once, before its first connection. It registers and runs the library's event
// loop, which serves all connections until the process ends.
var initLibvirt = sync.OnceValue(func() error {
	// The client must not start a libvirtd of its own. It reads this variable in each connect and has no other setting for a
	// session's libvirtd, so it is set here, where no thread of the library can read the environment yet. Source: libvirt
	// src/remote/remote_driver.c.
	if err := os.Setenv("LIBVIRT_AUTOSTART", "0"); err != nil {
		return fmt.Errorf("keep libvirt's client from starting a libvirtd: %w", err)
	}
	if err := libvirt.EventRegisterDefaultImpl(); err != nil {
		return fmt.Errorf("register libvirt's event loop: %w", err)
	}
	go func() {
		for {
			if err := libvirt.EventRunDefaultImpl(); err != nil {
				log.Log.Error(err, "libvirt's event loop failed, running it again")
				// If it keeps failing, it must not use up the CPU.
				<-time.After(time.Second)
			}
		}
	}()
	return nil
})

// noteStart stores when a state started, unless the guest is in that state already: libvirt repeats events when a post-copy starts and
// ends. other is the start of the state that ends this one.
func noteStart(state, other *atomic.Int64) {
	if since := state.Load(); since == 0 || since < other.Load() {
		state.Store(time.Now().UnixNano())
	}
}

// Watch calls notify after each event that can change what the agent reports about the domain. It is called once per connection,
// before Guest. notify must not block, because all connections share one event loop. It gets no details of the event: the
// receiver reads the state.
func (c *Conn) Watch(ctx context.Context, notify func()) error {
	c.notify = notify
	return c.call(ctx, queryTimeout, "register for events", func(l *libvirt.Connect) error {
		for _, register := range []func() (int, error){
			func() (int, error) {
				return l.DomainEventLifecycleRegister(nil,
					func(_ *libvirt.Connect, d *libvirt.Domain, e *libvirt.DomainEventLifecycle) {
						switch e.Event {
						case libvirt.DOMAIN_EVENT_SUSPENDED:
							noteStart(&c.suspended, &c.resumed)
						case libvirt.DOMAIN_EVENT_RESUMED:
							noteStart(&c.resumed, &c.suspended)
							if name, err := d.GetName(); err == nil {
								c.guestResumed(name)
							}
						case libvirt.DOMAIN_EVENT_CRASHED:
							// A panic, also of a guest that goes on with its crash kernel. QEMU's end without one is another event.
							c.options.Panicked(c.pod.VMI)
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
				// The hooks of a backup freeze and thaw the guest from inside the Pod and write that to the metadata.
				return l.DomainEventMetadataChangeRegister(nil,
					func(*libvirt.Connect, *libvirt.Domain, *libvirt.DomainEventMetadataChange) { notify() })
			},
			func() (int, error) {
				return l.DomainEventBalloonChangeRegister(nil,
					func(*libvirt.Connect, *libvirt.Domain, *libvirt.DomainEventBalloonChange) { notify() })
			},
			func() (int, error) {
				return l.DomainEventDeviceRemovedRegister(nil,
					func(*libvirt.Connect, *libvirt.Domain, *libvirt.DomainEventDeviceRemoved) { notify() })
			},
			func() (int, error) {
				return l.DomainEventMemoryDeviceSizeChangeRegister(nil,
					func(*libvirt.Connect, *libvirt.Domain, *libvirt.DomainEventMemoryDeviceSizeChange) { notify() })
			},
		} {
			if _, err := register(); err != nil {
				return err
			}
		}
		return nil
	})
}

// missedEvents handles events that were dropped because there were too many: it acts as after each kind of event, once.
func (c *Conn) missedEvents() {
	c.guestConnected()
	c.notify()
}
