// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package snapshotfreeze

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"libvirt.org/go/libvirtxml"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/decide/snapshot/freeze"
)

// node is an agent with one guest.
type node struct {
	*world
	keeper   Keeper
	freezes  *Freezes
	enqueued atomic.Int32
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{world: newWorld()}
	n.freezes = New(n.clock, func(types.NamespacedName) { n.enqueued.Add(1) })
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = n.freezes.Start(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	return n
}

// observed returns the domain as a reconciliation reads it.
func (n *node) observed(connected bool) *hypervisor.Domain {
	d := &hypervisor.Domain{State: hypervisor.StateRunning,
		XML: &libvirtxml.Domain{Devices: &libvirtxml.DomainDeviceList{}}}
	if n.record != nil {
		note := hypervisor.SnapshotFreezeNote(*n.record)
		d.XML.Metadata = &libvirtxml.DomainMetadata{XML: "<freeze xmlns='" + hypervisor.SnapshotFreezeURI + "'" +
			note[len("<freeze"):]}
	}
	state := "disconnected"
	if connected {
		state = "connected"
	}
	d.XML.Devices.Channels = []libvirtxml.DomainChannel{{Target: &libvirtxml.DomainChannelTarget{
		VirtIO: &libvirtxml.DomainChannelTargetVirtIO{Name: hypervisor.AgentChannel, State: state},
	}}}
	return d
}

func (n *node) sync(connected bool) time.Duration {
	s := &State{Domain: "ns_vm", Intent: n.intent, Reported: n.reported, Observed: n.observed(connected)}
	delay := n.keeper.Sync(n.freezes, n, s)
	synctest.Wait()
	return delay
}

func TestReconciliationsCarryOutAFreeze(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.sync(true)
		n.expect(t, freeze.Frozen, false, true)
		if n.enqueued.Load() != 1 {
			t.Errorf("enqueued %d times", n.enqueued.Load())
		}
		if delay := n.sync(true); delay != deadline.Sub(start) {
			t.Errorf("the deadline is reached after %s", delay)
		}
		if n.enqueued.Load() != 1 {
			t.Error("a reconciliation without a change causes another one")
		}
		n.clock.SetTime(deadline)
		n.sync(true)
		n.expect(t, freeze.Thawed, false, false)
		calls := n.thaws
		if delay := n.sync(true); delay != 0 || n.thaws != calls {
			t.Errorf("a freeze that has ended is continued after %s", delay)
		}
	})
}

func TestSilentGuestIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.silent = true
		n.sync(false)
		n.sync(false) // The record is written: its deadline is another one.
		n.silent = false
		if delay := n.sync(false); delay != retryPause || n.frozen {
			t.Errorf("tried again after %s, frozen: %t", delay, n.frozen)
		}
		n.sync(true)
		if !n.frozen {
			t.Error("the connection of the guest agent did not trigger another attempt")
		}
	})
}

func TestEndOfSilentGuestsFreezeIsTriedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.silent = true
		n.sync(true)
		n.sync(true)
		n.silent = false
		n.end(freeze.Cancel)
		n.sync(true)
		n.expect(t, freeze.Failed, false, false)
	})
}

func TestFreezesEndWithTheProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.freezes.stop()
		blocked := &blockedGuest{world: n.world}
		n.keeper.Sync(n.freezes, blocked, &State{Domain: "ns_vm", Intent: n.intent, Observed: n.observed(true)})
		synctest.Wait()
		if n.record != nil || n.frozen {
			t.Error("the guest was frozen after the process had ended")
		}
	})
}

// blockedGuest does not respond until the call is canceled.
type blockedGuest struct{ *world }

func (g *blockedGuest) SnapshotFreeze(ctx context.Context, _ string) (*freeze.Record, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// forgetfulGuest is a launcher that acknowledges records and does not store them, or does not return what it has
// stored.
type forgetfulGuest struct {
	*world
	stores bool
	// writes, if it is set, is received from before each write.
	writes chan struct{}
	runs   atomic.Int32
}

func (g *forgetfulGuest) SnapshotFreeze(context.Context, string) (*freeze.Record, error) {
	g.runs.Add(1)
	g.clock.SetTime(g.clock.Now().Add(time.Second)) // Each record is another one.
	return nil, nil
}

func (g *forgetfulGuest) RecordSnapshotFreeze(ctx context.Context, domain string, record freeze.Record) error {
	if g.writes != nil {
		<-g.writes
	}
	if g.stores {
		return g.world.RecordSnapshotFreeze(ctx, domain, record)
	}
	return nil
}

func (g *forgetfulGuest) ThawAfterSnapshot(ctx context.Context, domain string, record freeze.Record) (bool, error) {
	ended, err := g.world.ThawAfterSnapshot(ctx, domain, record)
	if !g.stores {
		g.record = nil
	}
	return ended, err
}

// loop reconciles as often as the VMI is enqueued, but not forever.
func (n *node) loop(g *forgetfulGuest) {
	for range 50 {
		n.enqueued.Store(0)
		n.keeper.Sync(n.freezes, g,
			&State{Domain: "ns_vm", Intent: n.intent, Reported: n.reported, Observed: n.observed(true)})
		synctest.Wait()
		if n.enqueued.Load() == 0 {
			return
		}
	}
}

// A guest is frozen once for an intent, also if the status does not have the record yet.
func TestLauncherThatForgetsIsNotFrozenAgain(t *testing.T) {
	for name, stores := range map[string]bool{"it stores nothing": false, "it does not return what it stored": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t)
				g := &forgetfulGuest{world: n.world, stores: stores}
				for _, id := range []string{"a", "b"} {
					n.intent = &freeze.Intent{ID: id, Deadline: deadline}
					n.loop(g)
					if got := g.runs.Swap(0); got != 2 || n.frozen {
						t.Errorf("intent %s: %d runs, want one that freezes and one that thaws; frozen: %t", id, got, n.frozen)
					}
					n.clock.SetTime(n.clock.Now().Add(retryPause))
					n.loop(g)
					if got := g.runs.Swap(0); got != 0 || n.frozen {
						t.Errorf("intent %s: %d runs after the pause, frozen: %t", id, got, n.frozen)
					}
				}
			})
		})
	}
}

func TestIntentThatChangesDuringARunIsCarriedOutAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		g := &forgetfulGuest{world: n.world, writes: make(chan struct{})}
		reconcile := func() {
			n.keeper.Sync(n.freezes, g,
				&State{Domain: "ns_vm", Intent: n.intent, Reported: n.reported, Observed: n.observed(true)})
			synctest.Wait()
		}
		reconcile()
		n.intent = &freeze.Intent{ID: "b", Deadline: deadline}
		reconcile()
		if g.runs.Load() != 1 || n.enqueued.Load() != 0 {
			t.Fatalf("%d runs at a time, enqueued %d times", g.runs.Load(), n.enqueued.Load())
		}
		close(g.writes)
		synctest.Wait()
		if n.enqueued.Load() != 1 {
			t.Errorf("enqueued %d times after the run", n.enqueued.Load())
		}
		reconcile()
		if g.runs.Load() != 2 {
			t.Error("the new intent waits")
		}
	})
}
