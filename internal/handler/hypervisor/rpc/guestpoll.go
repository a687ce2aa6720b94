// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"context"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/vireo-project/vireo/internal/handler/hypervisor"
)

const (
	// firstGuestPoll is the pause after the agent connected: addresses and names come while the guest boots.
	firstGuestPoll = 5 * time.Second
	// maxGuestPoll is the pause once nothing changes any more, as in KubeVirt's guest information poller.
	maxGuestPoll = 2 * time.Minute
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
	for _, kick := range []chan struct{}{c.guest.kick, c.credentials.kick, c.thaw.kick} {
		select {
		case kick <- struct{}{}:
		default:
		}
	}
}

func (c *Conn) pollGuest(domain string) {
	pause := firstGuestPoll
	for {
		info, err := c.GuestInfo(context.Background(), domain)
		if err != nil {
			log.Log.V(4).Info("Guest agent does not answer", "pod", c.pod.UID, "error", err.Error())
		} else if !reflect.DeepEqual(c.guest.info.Swap(info), info) {
			c.notify()
		}
		select {
		case <-c.Done():
			return
		case <-c.guest.kick:
			pause = firstGuestPoll
		case <-time.After(pause):
			pause = min(2*pause, maxGuestPoll)
		}
	}
}
