// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"context"
	"errors"
	"sync"
	"time"

	"libvirt.org/go/libvirt"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/vireo-project/vireo/internal/handler/hypervisor"
)

const (
	// clockPatience is how long a guest that runs on may take to have its clock set. KubeVirt's value (pkg/virt-launcher/virtwrap, setGuestTime).
	clockPatience = time.Minute
	// clockPause is the pause between two attempts.
	clockPause = 5 * time.Second
)

// clockSetter sets the clock of a guest that was paused or came from another node, in its own time: an agent that does not answer must not hold
// up the reconciler.
type clockSetter struct {
	mu sync.Mutex
	// until is when to give up; a guest that runs on once more has as much time again.
	until time.Time
	going bool
	// kick makes the next attempt come at once, when an agent connects.
	kick chan struct{}
}

// guestResumed has the clock of a guest set that runs on: the time for which it stood still is missing on it, and may be more than NTP in the
// guest corrects. A guest without an agent keeps the clock that it has.
func (c *Conn) guestResumed(domain string) {
	c.clock.mu.Lock()
	defer c.clock.mu.Unlock()
	c.clock.until = time.Now().Add(clockPatience)
	if !c.clock.going {
		c.clock.going = true
		go c.keepClock(domain)
	}
}

func (c *Conn) keepClock(domain string) {
	logger := log.Log.WithName("hypervisor").WithValues("vmi", c.pod.VMI)
	for {
		resumed := c.clock.deadline()
		err := c.setClock(domain)
		switch {
		case err == nil, !errors.Is(err, hypervisor.ErrGuestSilent):
			if err != nil {
				logger.V(3).Info("The guest's clock is not set", "error", err.Error())
			}
			if c.clock.done(resumed) {
				return
			}
			continue
		case !time.Now().Before(resumed) && c.clock.done(resumed):
			logger.V(3).Info("The guest's clock is not set, its agent does not answer", "error", err.Error())
			return
		}
		select {
		case <-c.Done():
			return
		case <-c.clock.kick:
		case <-time.After(clockPause):
		}
	}
}

// setClock gives the guest the node's time. libvirt has QEMU forget the ticks of the real-time clock that it would catch up with.
func (c *Conn) setClock(domain string) error {
	return fromGuest(c.withAgent(context.Background(), domain, "set the guest's clock", func(d *libvirt.Domain) error {
		now := time.Now()
		return d.SetTime(now.Unix(), uint(now.Nanosecond()), 0)
	}))
}

func (s *clockSetter) deadline() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.until
}

// done ends the work on a guest, unless it was paused and resumed once more meanwhile.
func (s *clockSetter) done(until time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.going = !s.until.Equal(until)
	return !s.going
}
