// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/ratelimit"
)

const (
	// firstGuestPoll is the first interval after the agent connected: addresses and names appear while the guest boots.
	firstGuestPoll = 5 * time.Second
	// maxGuestPoll is the longest interval, as in KubeVirt's guest information poller.
	maxGuestPoll = 2 * time.Minute
	// guestPolls is how often the agent is polled without a delay after it connected, and guestPollPause the time between two
	// polls beyond that: a guest decides how often its agent connects, and each poll needs a connection.
	guestPolls     = 3
	guestPollPause = 10 * time.Second
)

// guestPoller polls the guest agent, for whose reports libvirt has no events. It runs in its own goroutine, so that an agent that
// does not respond does not block the reconciler.
type guestPoller struct {
	start   sync.Once
	trigger chan struct{}
	info    atomic.Pointer[hypervisor.GuestInfo]
	usage   atomic.Pointer[hypervisor.GuestUsage]
}

// Guest returns the guest agent's last report, or nil. After the first call the Conn polls the agent and calls the function given
// to Watch when the report changes.
func (c *Conn) Guest(domain string) *hypervisor.GuestInfo {
	c.guest.start.Do(func() { go c.pollGuest(domain) })
	return c.guest.info.Load()
}

// guestConnected triggers a poll of the agent and sets the credentials again: after a reboot from another disk it may be the
// agent of another operating system.
func (c *Conn) guestConnected() {
	for _, c := range []chan struct{}{c.guest.trigger, c.credentials.trigger, c.thaw.trigger, c.clock.trigger} {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

func (c *Conn) pollGuest(domain string) {
	c.guest.poll(c.Done(), func() (*hypervisor.GuestInfo, error) {
		info, usage, err := c.GuestInfo(c.relay.ctx, domain)
		if err != nil {
			log.Log.V(4).Info("Guest agent does not respond", "pod", c.pod.UID, "error", err.Error())
		} else {
			// It changes with each report, and is not in the VMI's status.
			c.guest.usage.Store(usage)
		}
		return info, err
	}, c.notify)
}

// poll polls until the connection is closed, and calls notify when the report changes.
func (p *guestPoller) poll(done <-chan struct{}, request func() (*hypervisor.GuestInfo, error), notify func()) {
	pauses, limit := ratelimit.ExponentialBackoff(firstGuestPoll, maxGuestPoll), ratelimit.NewLimiter(guestPolls, ratelimit.ExponentialBackoff(guestPollPause, guestPollPause))
	for {
		select {
		case <-done:
			return
		case <-time.After(limit.Delay(time.Now())):
		}
		limit.Take(time.Now())
		if info, err := request(); err == nil && !reflect.DeepEqual(p.info.Swap(info), info) {
			notify()
		}
		select {
		case <-done:
			return
		case <-p.trigger:
			pauses = ratelimit.ExponentialBackoff(firstGuestPoll, maxGuestPoll)
		case <-time.After(pauses.Duration):
			pauses.Step()
		}
	}
}
