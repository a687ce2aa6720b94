// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
)

// A guest that keeps opening and closing its agent's channel must not keep the node busy with polls.
func TestPollsAreRateLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &guestPoller{trigger: make(chan struct{}, 1)}
		done, polls := make(chan struct{}), 0
		go p.poll(done, func() (*hypervisor.GuestInfo, error) { polls++; return &hypervisor.GuestInfo{}, nil }, func() {})
		for range 6000 {
			select {
			case p.trigger <- struct{}{}:
			default:
			}
			time.Sleep(10 * time.Millisecond)
		}
		close(done)
		synctest.Wait()
		if want := guestPolls + int(time.Minute/guestPollPause); polls > want || polls < want-1 {
			t.Errorf("polled %d times in a minute, want about %d", polls, want)
		}
	})
}

func TestPollWhenAgentConnects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &guestPoller{trigger: make(chan struct{}, 1)}
		done, notified, name := make(chan struct{}), 0, "a"
		go p.poll(done, func() (*hypervisor.GuestInfo, error) { return &hypervisor.GuestInfo{Hostname: name}, nil }, func() { notified++ })
		time.Sleep(time.Hour)
		synctest.Wait()
		name = "b"
		p.trigger <- struct{}{}
		synctest.Wait()
		if got := p.info.Load(); notified != 2 || got.Hostname != "b" {
			t.Errorf("notified %d times, %+v is known", notified, got)
		}
		close(done)
	})
}
