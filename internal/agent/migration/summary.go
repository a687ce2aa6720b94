// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package migration

import (
	"context"
	"fmt"
	"strings"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// times are moments of a transfer. An unknown one is zero.
type times struct {
	// started is when the transfer started, paused since when the source's guest is paused, and resumed since when the target's runs.
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
	t.recordEvent(transfer.vmi, v1.Migrated, string(v1.Migrated), fmt.Sprintf("The VirtualMachineInstance migrated to node %s: %s.", node, text))
}

// summary describes a migration that has succeeded, as far as its figures are known.
func summary(t times, s *State, now time.Time) string {
	text := []string{fmt.Sprintf("%d ms in total", now.Sub(t.started).Milliseconds())}
	if !t.paused.IsZero() && t.resumed.After(t.paused) {
		text = append(text, fmt.Sprintf("downtime %d ms", t.resumed.Sub(t.paused).Milliseconds()))
	}
	if p := s.Progress; p != nil {
		text = append(text, fmt.Sprintf("%d bytes transferred in %d passes", p.Memory.Processed+p.Disk.Processed, p.Iteration),
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
