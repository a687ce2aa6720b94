// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/vireo-project/vireo/internal/handler/hypervisor"
	"github.com/vireo-project/vireo/internal/handler/pace"
)

const (
	// firstGuestPoll is the pause after the agent connected: addresses and names come while the guest boots.
	firstGuestPoll = 5 * time.Second
	// maxGuestPoll is the pause once nothing changes any more, as in KubeVirt's guest information poller.
	maxGuestPoll = 2 * time.Minute
	// guestPolls is how often the agent is asked at once because it connected, and guestPollPause the time between two questions
	// beyond that: a guest decides how often its agent connects, and each time costs a conversation.
	guestPolls     = 3
	guestPollPause = 10 * time.Second
)

// guestPoller asks the guest agent now and then, in its own time: an agent that does not answer must not hold up
// the reconciler. libvirt has no event for what a guest agent could tell.
type guestPoller struct {
	start sync.Once
	kick  chan struct{}
	info  atomic.Pointer[hypervisor.GuestInfo]
}

// Guest is what the guest agent told last, or nil. The first call makes the Conn ask the agent from now on, and
// call the function given to Watch when the answer changes.
func (c *Conn) Guest(domain string) *hypervisor.GuestInfo {
	c.guest.start.Do(func() { go c.pollGuest(domain) })
	return c.guest.info.Load()
}

// guestConnected makes the next question come at once, and gives the agent its credentials: it may be another guest's by
// now, after a reboot from another disk.
func (c *Conn) guestConnected() {
	for _, kick := range []chan struct{}{c.guest.kick, c.credentials.kick, c.thaw.kick, c.clock.kick} {
		select {
		case kick <- struct{}{}:
		default:
		}
	}
}

func (c *Conn) pollGuest(domain string) {
	c.guest.poll(c.Done(), func() (*hypervisor.GuestInfo, error) {
		info, err := c.GuestInfo(c.relay.ctx, domain)
		if err != nil {
			log.Log.V(4).Info("Guest agent does not answer", "pod", c.pod.UID, "error", err.Error())
		}
		return info, err
	}, c.notify)
}

// poll asks until the connection is done, and calls notify when the answer is another.
func (p *guestPoller) poll(done <-chan struct{}, ask func() (*hypervisor.GuestInfo, error), notify func()) {
	pauses, share := pace.Doubling(firstGuestPoll, maxGuestPoll), pace.NewBucket(guestPolls, pace.Doubling(guestPollPause, guestPollPause))
	for {
		select {
		case <-done:
			return
		case <-time.After(share.Wait(time.Now())):
		}
		share.Take(time.Now())
		if info, err := ask(); err == nil && !reflect.DeepEqual(p.info.Swap(info), info) {
			notify()
		}
		select {
		case <-done:
			return
		case <-p.kick:
			pauses = pace.Doubling(firstGuestPoll, maxGuestPoll)
		case <-time.After(pauses.Duration):
			pauses.Step()
		}
	}
}
