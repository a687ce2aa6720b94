// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"
	"libvirt.org/go/libvirt"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/ratelimit"
)

const (
	// clockTimeout is how long the agent tries to set the clock of a resumed guest. KubeVirt's value
	// (pkg/virt-launcher/virtwrap, setGuestTime).
	clockTimeout = time.Minute
	// firstClockPause is the delay after the first attempt, and maxClockPause the longest.
	firstClockPause, maxClockPause = time.Second, 15 * time.Second
	// clockTries is how often the clock is set without a delay after the guest agent connected or the guest was resumed, and
	// clockTryPause the time between two attempts beyond that: a guest decides how often its agent connects.
	clockTries    = 3
	clockTryPause = 5 * time.Second
)

// clockSetter sets the clock of a guest that was paused or migrated. It runs in its own goroutine, so that a guest agent that
// does not respond does not block the reconciler.
type clockSetter struct {
	time clock.PassiveClock
	// trigger starts the next attempt at once, when the guest agent connects or the guest is resumed again.
	trigger chan struct{}

	mu sync.Mutex
	// until is when to give up. It is extended when the guest is resumed again.
	until  time.Time
	active bool
}

func newClockSetter(time clock.PassiveClock) clockSetter {
	return clockSetter{time: time, trigger: make(chan struct{}, 1)}
}

// guestResumed sets the clock of a resumed guest, which is behind by the time for which the guest was paused: NTP in the guest
// may not correct that much. The clock of a guest without an agent is not set.
func (c *Conn) guestResumed(domain string) {
	c.clock.resumed(c.Done(), func() error { return c.setClock(domain) }, log.Log.WithName("hypervisor").WithValues("vmi", c.pod.VMI))
}

// resumed starts to set the clock, or starts again.
func (s *clockSetter) resumed(done <-chan struct{}, set func() error, logger logr.Logger) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.until = s.time.Now().Add(clockTimeout)
	if s.active {
		select {
		case s.trigger <- struct{}{}:
		default:
		}
		return
	}
	s.active = true
	go s.keep(done, set, logger)
}

// keep tries until the clock is set, the guest agent has not responded for clockTimeout, or the connection is closed.
func (s *clockSetter) keep(done <-chan struct{}, set func() error, logger logr.Logger) {
	pauses, limit := ratelimit.ExponentialBackoff(firstClockPause, maxClockPause), ratelimit.NewLimiter(clockTries, ratelimit.ExponentialBackoff(clockTryPause, clockTryPause))
	for {
		select {
		case <-done:
			return
		case <-time.After(limit.Delay(s.time.Now())):
		}
		limit.Take(s.time.Now())
		until := s.deadline()
		err := set()
		switch {
		case err == nil, !errors.Is(err, hypervisor.ErrGuestSilent):
			if err != nil {
				logger.V(3).Info("Cannot set the guest's clock", "error", err.Error())
			}
			if s.done(until) {
				return
			}
			continue
		case !s.time.Now().Before(until) && s.done(until):
			logger.V(3).Info("Cannot set the guest's clock because its agent does not respond", "error", err.Error())
			return
		}
		select {
		case <-done:
			return
		case <-s.trigger:
			pauses = ratelimit.ExponentialBackoff(firstClockPause, maxClockPause)
		case <-time.After(pauses.Duration):
			pauses.Step()
		}
	}
}

// setClock sets the guest's clock to the node's time. libvirt also makes QEMU drop the real-time clock's missed ticks.
func (c *Conn) setClock(domain string) error {
	return fromGuest(c.withAgent(context.Background(), domain, "set the guest's clock", func(d *libvirt.Domain) error {
		now := c.clock.time.Now()
		return d.SetTime(now.Unix(), uint(now.Nanosecond()), 0)
	}))
}

func (s *clockSetter) deadline() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.until
}

// done stops the attempts, unless the guest was resumed again in the meantime.
func (s *clockSetter) done(until time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.active = !s.until.Equal(until)
	return !s.active
}
