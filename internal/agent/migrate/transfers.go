// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package migrate

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/migrate/convergence"
	"github.com/vireo-project/vireo/internal/agent/migrate/peer"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// Transfers are the transfers that this process has started, by the UID of their migration. It outlives single
// reconciliations. When the process ends, so do the transfers, and libvirt keeps the guests at their source.
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
	// OnMigrated is called on a goroutine of its own when the source's guest can never run again, with the VMI as it was
	// at the start.
	OnMigrated func(ctx context.Context, vmi *v1.VirtualMachineInstance)
	// DetectStalls reports whether the feature gate MigrationStallDetection is on. Nil means no.
	DetectStalls func() bool
	// Checksum reads a file of a launcher Pod.
	Checksum peer.ChecksumFunc
	// RecordEvent records what is done to end a migration and why, and a summary at the end: a few events for each. It may
	// be nil.
	RecordEvent RecordEvent
}

// NewTransfers makes Transfers.
func NewTransfers(o Options) *Transfers {
	ctx, stop := context.WithCancel(context.Background())
	return &Transfers{
		Options: o, now: time.Now, ctx: ctx, stop: stop, transfers: map[types.UID]*Transfer{},
		untracked: map[types.UID]time.Time{},
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

// StartTransfer transfers the guest of a launcher Pod, whose migration's start is recorded in its status. Each
// migration is transferred once. Digests are the digests by which the Pod's spec names images.
func (t *Transfers) StartTransfer(
	vmi *v1.VirtualMachineInstance, pod hypervisor.PodRef, digests map[string]string, source Source,
) {
	t.mu.Lock()
	defer t.mu.Unlock()
	uid := vmi.Status.MigrationState.MigrationUID
	if t.transfers[uid] != nil || t.ctx.Err() != nil {
		return
	}
	transfer := &Transfer{
		vmi: vmi.DeepCopy(), source: source, pod: pod, digests: digests, state: State{Running: true},
		times: times{started: t.now()},
	}
	t.transfers[uid] = transfer
	t.wg.Go(func() { t.run(t.ctx, transfer) })
}

// SetTargetRunning records that the target's agent has reported that the guest of a migration runs, and for how long it
// has.
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

// CanceledError is the error of a transfer that was canceled.
type CanceledError struct {
	// Reason is that of Cancel.
	Reason string
}

// Error is the reason.
func (c *CanceledError) Error() string { return c.Reason }

// Transfer is the transfer of one guest, running or ended.
type Transfer struct {
	vmi    *v1.VirtualMachineInstance
	source Source
	// pod is the source's launcher Pod.
	pod hypervisor.PodRef
	// digests are the digests by which its spec names images, by the directories where they are mounted.
	digests map[string]string
	// rules are set before the transfer is watched.
	rules convergence.Rules

	mu     sync.Mutex
	state  State
	times  times
	cancel string
	// interrupt ends what runs before libvirt's migration job, or is nil.
	interrupt context.CancelFunc
	// forgotten reports whether it is removed once it has ended.
	forgotten bool
}

// State is the state of a transfer.
type State struct {
	// Running reports whether libvirt has not returned yet.
	Running bool
	// Migrated reports whether the source's guest can never run again. libvirt may not have returned yet.
	Migrated bool
	// Err is why the transfer ended without that.
	Err error
	// Progress is the progress that was read last, or nil.
	Progress *hypervisor.TransferProgress
	// MaxDirtyRate is the most memory in bytes that the guest changed in a second, as far as it was measured.
	MaxDirtyRate uint64
}

// State returns the current state.
func (t *Transfer) State() State {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.state
}

func (t *Transfer) change(do func(*State)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	do(&t.state)
}

// Cancel ends the transfer. Its error is then a CanceledError with the reason of the first call.
func (t *Transfer) Cancel(ctx context.Context, reason string) error {
	t.mu.Lock()
	if t.cancel == "" {
		t.cancel = reason
	}
	if t.interrupt != nil {
		t.interrupt()
	}
	t.mu.Unlock()
	return t.source.CancelTransfer(ctx, t.domainName())
}

// cancelable returns a context that also ends when the transfer is canceled.
func (t *Transfer) cancelable(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.interrupt = cancel
	if t.cancel != "" {
		cancel()
	}
	return ctx, cancel
}

func (t *Transfer) isCanceled() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.cancel != ""
}

// isPerformed reports whether all is transferred but what a post-copy still fetches: no step can help any more.
func (t *Transfer) isPerformed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !t.times.paused.IsZero()
}

func (t *Transfer) attempt() peer.Attempt { return peer.AttemptOf(t.vmi) }

func (t *Transfer) domainName() string { return launcherpod.DomainName(t.vmi.Namespace, t.vmi.Name) }

// moveState returns what moves the guest's persistent state to the target's claim while the guest is paused, or nil if
// both Pods have the same claim. All of the state must be on the target's claim before the guest can run there
// (docs/adr/0033).
func moveState(transfer *Transfer, target stateKeeper) func(context.Context) error {
	if !vmistatus.MovesState(transfer.vmi.Status.MigrationState) {
		return nil
	}
	return func(ctx context.Context) error {
		var nvram []byte
		if transfer.vmi.Spec.HasPersistentEFI() {
			var err error
			if nvram, err = transfer.source.ReadNVRAM(ctx, launcherpod.NVRAMStateFile(transfer.vmi.Name)); err != nil {
				return err
			}
		}
		if err := target.KeepState(ctx, transfer.attempt(), nvram); err != nil {
			return fmt.Errorf("move the TPM's and EFI's state: %w", err)
		}
		return nil
	}
}

// times are moments of a transfer. An unknown one is zero.
type times struct {
	// started is when the transfer started, paused since when the source's guest is paused, and resumed since when the
	// target's runs.
	started, paused, resumed time.Time
}

// setPaused records since when the guest is paused, and reads the progress for the last time.
func (t *Transfers) setPaused(ctx context.Context, transfer *Transfer, since time.Time) {
	transfer.mu.Lock()
	transfer.times.paused = since
	transfer.mu.Unlock()
	t.wg.Go(func() {
		progress, err := transfer.source.TransferProgress(context.WithoutCancel(ctx), transfer.domainName())
		if err == nil && progress != nil && progress.Memory.Total > 0 {
			transfer.change(func(s *State) { s.Progress = progress })
		}
	})
}

// recordSummary records an event about a migration that has succeeded.
func (t *Transfers) recordSummary(ctx context.Context, transfer *Transfer) {
	transfer.mu.Lock()
	times, state := transfer.times, transfer.state
	transfer.mu.Unlock()
	node := transfer.vmi.Status.MigrationState.TargetNode
	text := summary(times, &state, t.now())
	log.FromContext(ctx).Info("The migration has succeeded", "node", node, "summary", text)
	// The text up to the colon is KubeVirt's.
	t.recordEvent(transfer.vmi, v1.Migrated, string(v1.Migrated),
		fmt.Sprintf("The VirtualMachineInstance migrated to node %s: %s.", node, text))
}

// summary describes a migration that has succeeded, as far as its figures are known.
func summary(t times, s *State, now time.Time) string {
	text := []string{fmt.Sprintf("%d ms in total", now.Sub(t.started).Milliseconds())}
	if !t.paused.IsZero() && t.resumed.After(t.paused) {
		text = append(text, fmt.Sprintf("downtime %d ms", t.resumed.Sub(t.paused).Milliseconds()))
	}
	if p := s.Progress; p != nil {
		text = append(text, fmt.Sprintf("%d bytes transferred in %d passes", p.Memory.Processed+p.Disk.Processed,
			p.Iteration),
			fmt.Sprintf("%d bytes/s", p.Memory.BytesPerSecond+p.Disk.BytesPerSecond))
		// QEMU measures it once a second: it is unknown for a shorter migration.
		if s.MaxDirtyRate > 0 {
			text = append(text, fmt.Sprintf("the guest changed up to %d bytes/s", s.MaxDirtyRate))
		}
		if p.Throttle > 0 {
			text = append(text, fmt.Sprintf("throttled by %d%%", p.Throttle))
		}
	}
	return strings.Join(text, ", ")
}
