// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package migration

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/migration/peer"
)

// Transfers are the transfers that this process has started, by the UID of their migration. It outlives single reconciliations. When the
// process ends, so do the transfers, and libvirt keeps the guests at their source.
type Transfers struct {
	Options
	now func() time.Time

	ctx  context.Context // ends with the process
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu        sync.Mutex
	transfers map[types.UID]*Transfer
	// untracked are the VMIs of which a migration has failed because of bitmaps, and when.
	untracked map[types.UID]time.Time
}

// RecordEvent records an event of a VMI. The action is one word for what was done; recorders of core/v1 events drop it.
type RecordEvent func(vmi *v1.VirtualMachineInstance, reason v1.SyncEvent, action, message string)

// Options configures Transfers.
type Options struct {
	// Peer sends requests to the targets' agents.
	Peer Peer
	// Enqueue is called when the transfer of a VMI has changed. It must not block.
	Enqueue func(types.NamespacedName)
	// RecordMode writes the mode of a migration to the VMI's status, before the mode is used.
	RecordMode func(ctx context.Context, vmi *v1.VirtualMachineInstance, mode v1.MigrationMode) error
	// OnMigrated is called on a goroutine of its own when the source's guest can never run again, with the VMI as it was at the start.
	OnMigrated func(ctx context.Context, vmi *v1.VirtualMachineInstance)
	// DetectStalls reports whether the feature gate MigrationStallDetection is on. Nil means no.
	DetectStalls func() bool
	// Checksum reads a file of a launcher Pod.
	Checksum peer.ChecksumFunc
	// RecordEvent records what is done to end a migration and why, and a summary at the end: a few events for each. It may be nil.
	RecordEvent RecordEvent
}

// NewTransfers makes Transfers.
func NewTransfers(o Options) *Transfers {
	ctx, stop := context.WithCancel(context.Background())
	return &Transfers{
		Options: o, now: time.Now, ctx: ctx, stop: stop, transfers: map[types.UID]*Transfer{}, untracked: map[types.UID]time.Time{},
	}
}

// Start ends the transfers when the context ends. It is a Runnable of a manager.
func (t *Transfers) Start(ctx context.Context) error {
	<-ctx.Done()
	t.stop()
	t.wg.Wait()
	return nil
}

// NeedLeaderElection is false: every agent transfers the guests of its node.
func (*Transfers) NeedLeaderElection() bool { return false }

// Find returns the transfer of a migration, or nil if this process has not started one.
func (t *Transfers) Find(migration types.UID) *Transfer {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.transfers[migration]
}

// Forget removes a transfer, as soon as it has ended.
func (t *Transfers) Forget(migration types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	found := t.transfers[migration]
	if found == nil {
		return
	}
	found.mu.Lock()
	found.forgotten = true
	ended := !found.state.Running
	found.mu.Unlock()
	if ended {
		delete(t.transfers, migration)
	}
}

// StartTransfer transfers the guest of a launcher Pod, whose migration's start is recorded in its status. Each migration is transferred
// once. Digests are the digests by which the Pod's spec names images.
func (t *Transfers) StartTransfer(vmi *v1.VirtualMachineInstance, pod hypervisor.PodRef, digests map[string]string, source Source) {
	t.mu.Lock()
	defer t.mu.Unlock()
	uid := vmi.Status.MigrationState.MigrationUID
	if t.transfers[uid] != nil || t.ctx.Err() != nil {
		return
	}
	transfer := &Transfer{
		vmi: vmi.DeepCopy(), source: source, pod: pod, digests: digests, state: State{Running: true}, times: times{started: t.now()},
	}
	t.transfers[uid] = transfer
	t.wg.Go(func() { t.run(t.ctx, transfer) })
}

// SetTargetRunning records that the target's agent has reported that the guest of a migration runs, and for how long it has.
func (t *Transfers) SetTargetRunning(migration types.UID, elapsed time.Duration) {
	transfer := t.Find(migration)
	if transfer == nil {
		return
	}
	transfer.mu.Lock()
	defer transfer.mu.Unlock()
	if transfer.times.resumed.IsZero() {
		transfer.times.resumed = t.now().Add(-elapsed)
	}
}

// recordEvent records an event of a VMI.
func (t *Transfers) recordEvent(vmi *v1.VirtualMachineInstance, reason v1.SyncEvent, action, message string) {
	if t.RecordEvent != nil {
		t.RecordEvent(vmi, reason, action, message)
	}
}
