// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package snapshotfreeze

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/decide/snapshot/freeze"
)

const (
	// retryPause is the time between two attempts if the guest does not respond, or if the launcher does not keep what was
	// written.
	retryPause = 10 * time.Second
	// maxRuns is how many runs for an intent may fail or change the record without a pause. Each triggers the next one,
	// whose input the launcher controls. A guest that does not respond at first, is frozen, and is thawed by a user needs
	// three.
	maxRuns = 4
	// runTimeout bounds a run. Each call has a shorter limit, but may wait for another freeze or thaw of the guest.
	runTimeout = 10 * time.Minute
)

// Freezes carries out the freezes of a node's guests. When the process ends, the next one continues from the domains'
// metadata.
type Freezes struct {
	clock   clock.PassiveClock
	enqueue func(types.NamespacedName)

	ctx  context.Context // ends with the process
	stop context.CancelFunc
	wg   sync.WaitGroup
}

// New makes Freezes. enqueue triggers a reconciliation of a VMI, and must not block.
func New(clock clock.PassiveClock, enqueue func(types.NamespacedName)) *Freezes {
	ctx, stop := context.WithCancel(context.Background())
	return &Freezes{clock: clock, enqueue: enqueue, ctx: ctx, stop: stop}
}

// Start ends the goroutines when the context ends. It is a Runnable of a manager.
func (f *Freezes) Start(ctx context.Context) error {
	<-ctx.Done()
	f.stop()
	f.wg.Wait()
	return nil
}

// NeedLeaderElection is false: every agent freezes the guests of its node.
func (*Freezes) NeedLeaderElection() bool { return false }

// State is what a reconciliation observed of a running guest.
type State struct {
	// VMI is the VMI's key, and Domain the name of its domain.
	VMI    types.NamespacedName
	Domain string
	// Intent is that of the VMI's status; nil cancels a freeze.
	Intent *freeze.Intent
	// Reported is the record of the VMI's status.
	Reported freeze.Record
	// Observed is the domain as it was read.
	Observed *hypervisor.Domain
}

// Keeper keeps one guest frozen or thawed, as the VMI's intent demands. Its zero value is ready for use. Its fields
// only avoid work.
type Keeper struct {
	mu sync.Mutex
	// running reports whether a run is in progress, and again whether the VMI is to be enqueued after it.
	running, again bool
	// written is the last record that a run has written.
	written freeze.Record
	// The last run was for intent. failed is its input if it failed, and replaced the record that it found if it wrote
	// another one.
	intent   freeze.Intent
	failed   *input
	replaced *freeze.Record
	// spent is how many runs for the intent have failed or changed the record. It, failed and replaced are valid until
	// retryAt.
	spent   int
	retryAt time.Time
}

// waits reports whether the next run has to wait until retryAt, because it would most likely fail like an earlier one.
func (k *Keeper) waits(now time.Time, in input, record freeze.Record) bool {
	if !now.Before(k.retryAt) || in.intent != k.intent {
		return false
	}
	return k.failed != nil && *k.failed == in || k.replaced != nil && *k.replaced == record || k.spent >= maxRuns
}

// input is what, if it changes, makes another attempt worthwhile at once.
type input struct {
	intent freeze.Intent
	// late reports whether the deadline of the record has passed.
	late bool
	// connected reports whether the guest agent has opened its channel.
	connected bool
}

func inputOf(s *State, late bool) input {
	in := input{connected: s.Observed.AgentConnected(), late: late}
	if s.Intent != nil {
		in.intent = *s.Intent
	}
	return in
}

// Sync starts what is to be done for a guest, and returns after which time to call it again even if nothing changes;
// zero means never. The VMI is enqueued when something was done.
func (k *Keeper) Sync(f *Freezes, guest Guest, s *State) time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := f.clock.Now()
	noted, err := s.Observed.SnapshotFreeze()
	// What was read from the launcher must not be kept beyond the reconciliation.
	kept := *s
	kept.Observed = nil
	if s.Intent != nil && k.written.ID == s.Intent.ID && s.Reported.ID != s.Intent.ID {
		// The status was read before it had the record. Without the record, a launcher that removes it from the metadata at
		// once would have its guest frozen again.
		kept.Reported = k.written
	}
	record := current(noted, err, &kept)
	if action, _ := freeze.DecideAgent(
		freeze.AgentView{Now: now, Intent: s.Intent, Record: record}); action == freeze.Wait && record.Ended() {
		return 0
	}
	// The guest is thawed at the deadline, even if nothing happens until then.
	delay := max(record.Deadline.Sub(now), 0)
	in := inputOf(s, delay == 0)
	switch {
	case k.running:
		k.again = true
		return delay
	case k.waits(now, in, record):
		if retry := k.retryAt.Sub(now); delay == 0 || retry < delay {
			return retry
		}
		return delay
	}
	if in.intent != k.intent || !now.Before(k.retryAt) {
		k.spent = 0
	}
	k.running, k.again, k.intent, k.failed, k.replaced = true, false, in.intent, nil, nil
	f.wg.Go(func() { k.run(f, guest, &kept, in, record) })
	return delay
}

// run carries out the decisions until the guest, the intent or the time has to change. record is that of the observed
// domain.
func (k *Keeper) run(f *Freezes, guest Guest, s *State, in input, record freeze.Record) {
	ctx, cancel := context.WithTimeout(f.ctx, runTimeout)
	defer cancel()
	written, err := execute(ctx, f.clock, guest, s)
	if err != nil && f.ctx.Err() == nil {
		log.Log.WithName("snapshot-freeze").Info("Cannot freeze or thaw a guest for a snapshot", "vmi", s.VMI, "error",
			err.Error(),
			"retryIn", retryPause.String())
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.running = false
	if err != nil {
		k.failed = &in
	}
	if written != nil {
		k.replaced, k.written = &record, *written
	}
	if written != nil || err != nil {
		k.spent, k.retryAt = k.spent+1, f.clock.Now().Add(retryPause)
	}
	if written != nil || err != nil || k.again {
		f.enqueue(s.VMI)
	}
}
