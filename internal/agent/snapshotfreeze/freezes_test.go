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
	"github.com/vireo-project/vireo/internal/snapshot/freeze"
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
	d := &hypervisor.Domain{State: hypervisor.StateRunning, XML: &libvirtxml.Domain{Devices: &libvirtxml.DomainDeviceList{}}}
	if n.record != nil {
		note := hypervisor.SnapshotFreezeNote(*n.record)
		d.XML.Metadata = &libvirtxml.DomainMetadata{XML: "<freeze xmlns='" + hypervisor.SnapshotFreezeURI + "'" + note[len("<freeze"):]}
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
