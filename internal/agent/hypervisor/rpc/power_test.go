// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
)

// guestClock is the clock of a guest whose agent does not respond until it is connected.
type guestClock struct {
	setter clockSetter
	time   *clocktesting.FakePassiveClock
	done   chan struct{}
	agent  error
	tries  int
}

func newGuestClock(t *testing.T) *guestClock {
	t.Helper()
	now := clocktesting.NewFakePassiveClock(time.Now())
	g := &guestClock{setter: newClockSetter(now), time: now, done: make(chan struct{}),
		agent: fmt.Errorf("set the clock: %w", hypervisor.ErrGuestSilent)}
	t.Cleanup(func() { close(g.done) })
	return g
}

func (g *guestClock) resumed() {
	g.setter.resumed(g.done, func() error { g.tries++; return g.agent }, logr.Discard())
	synctest.Wait()
}

// pass advances both clocks.
func (g *guestClock) pass(d time.Duration) {
	for range int(d / (100 * time.Millisecond)) {
		time.Sleep(100 * time.Millisecond)
		g.time.SetTime(g.time.Now().Add(100 * time.Millisecond))
	}
	synctest.Wait()
}

func (g *guestClock) expect(t *testing.T, tries int, going bool) {
	t.Helper()
	g.setter.mu.Lock()
	defer g.setter.mu.Unlock()
	if g.tries != tries || g.setter.active != going {
		t.Errorf("after %d attempts it goes on: %t, want %d and %t", g.tries, g.setter.active, tries, going)
	}
}

func (g *guestClock) connect() {
	select {
	case g.setter.trigger <- struct{}{}:
	default:
	}
}

func TestClockIsSetOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, response := range []error{nil, errors.New("the guest cannot")} {
			g := newGuestClock(t)
			g.agent = response
			g.resumed()
			g.pass(2 * clockTimeout)
			g.expect(t, 1, false)
		}
	})
}

func TestClockIsSetWhenAgentConnects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuestClock(t)
		g.resumed()
		g.pass(500 * time.Millisecond)
		g.expect(t, 1, true)
		g.agent = nil
		g.connect()
		synctest.Wait()
		g.expect(t, 2, false)
	})
}

// The delays grow, by the clock of the setter.
func TestClockSetterGivesUpOnSilentAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuestClock(t)
		g.resumed()
		g.pass(clockTimeout - time.Second)
		g.expect(t, g.tries, true)
		if g.tries < 5 || g.tries > 10 {
			t.Errorf("%d attempts in a minute", g.tries)
		}
		g.time.SetTime(g.time.Now().Add(clockTimeout))
		g.pass(maxClockPause)
		g.expect(t, g.tries, false)
	})
}

func TestResumeExtendsTimeToSetClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuestClock(t)
		g.resumed()
		g.pass(clockTimeout / 2)
		tries := g.tries
		g.resumed()
		if g.tries != tries+1 {
			t.Errorf("%d attempts, not %d, after it ran on", g.tries, tries+1)
		}
		g.pass(clockTimeout - time.Second)
		g.expect(t, g.tries, true)
		g.pass(maxClockPause + time.Second)
		g.expect(t, g.tries, false)
	})
}

// A guest that keeps opening and closing its agent's channel must not keep the node busy.
func TestClockIsRateLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuestClock(t)
		g.resumed()
		for range 500 {
			g.connect()
			g.pass(100 * time.Millisecond)
		}
		if want := clockTries + int(50*time.Second/clockTryPause); g.tries > want || g.tries < want-1 {
			t.Errorf("%d attempts in 50 seconds, want about %d", g.tries, want)
		}
	})
}
