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

	"github.com/vireo-project/vireo/internal/handler/hypervisor"
	"github.com/vireo-project/vireo/internal/handler/pace"
)

const (
	// clockPatience is how long a guest that runs on may take to have its clock set. KubeVirt's value (pkg/virt-launcher/virtwrap, setGuestTime).
	clockPatience = time.Minute
	// firstClockPause is the pause after the first attempt, and maxClockPause the longest.
	firstClockPause, maxClockPause = time.Second, 15 * time.Second
	// clockTries is how often the clock is set at once because the agent connected or the guest ran on, and clockTryPause the time between
	// two attempts beyond that: a guest decides how often its agent connects.
	clockTries    = 3
	clockTryPause = 5 * time.Second
)

// clockSetter sets the clock of a guest that was paused or came from another node, in its own time: an agent that does not answer must not hold
// up the reconciler.
type clockSetter struct {
	time clock.PassiveClock
	// kick makes the next attempt come at once, when an agent connects or the guest runs on once more.
	kick chan struct{}

	mu sync.Mutex
	// until is when to give up; a guest that runs on once more has as much time again.
	until time.Time
	going bool
}

func newClockSetter(time clock.PassiveClock) clockSetter {
	return clockSetter{time: time, kick: make(chan struct{}, 1)}
}

// guestResumed has the clock of a guest set that runs on: the time for which it stood still is missing on it, and may be more than NTP in the
// guest corrects. A guest without an agent keeps the clock that it has.
func (c *Conn) guestResumed(domain string) {
	c.clock.resumed(c.Done(), func() error { return c.setClock(domain) }, log.Log.WithName("hypervisor").WithValues("vmi", c.pod.VMI))
}

// resumed begins to set the clock, or to do so anew.
func (s *clockSetter) resumed(done <-chan struct{}, set func() error, logger logr.Logger) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.until = s.time.Now().Add(clockPatience)
	if s.going {
		select {
		case s.kick <- struct{}{}:
		default:
		}
		return
	}
	s.going = true
	go s.keep(done, set, logger)
}

// keep tries until the clock is set, the agent has not answered for long, or the connection is done.
func (s *clockSetter) keep(done <-chan struct{}, set func() error, logger logr.Logger) {
	pauses, share := pace.Doubling(firstClockPause, maxClockPause), pace.NewBucket(clockTries, pace.Doubling(clockTryPause, clockTryPause))
	for {
		select {
		case <-done:
			return
		case <-time.After(share.Wait(s.time.Now())):
		}
		share.Take(s.time.Now())
		until := s.deadline()
		err := set()
		switch {
		case err == nil, !errors.Is(err, hypervisor.ErrGuestSilent):
			if err != nil {
				logger.V(3).Info("The guest's clock is not set", "error", err.Error())
			}
			if s.done(until) {
				return
			}
			continue
		case !s.time.Now().Before(until) && s.done(until):
			logger.V(3).Info("The guest's clock is not set, its agent does not answer", "error", err.Error())
			return
		}
		select {
		case <-done:
			return
		case <-s.kick:
			pauses = pace.Doubling(firstClockPause, maxClockPause)
		case <-time.After(pauses.Duration):
			pauses.Step()
		}
	}
}

// setClock gives the guest the node's time. libvirt has QEMU forget the ticks of the real-time clock that it would catch up with.
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

// done ends the work on a guest, unless it was paused and resumed once more meanwhile.
func (s *clockSetter) done(until time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.going = !s.until.Equal(until)
	return !s.going
}
