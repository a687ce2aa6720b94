// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package handover

import (
	"context"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// times are moments of a copy. One that is not known is zero.
type times struct {
	// began is when the copy did, stopped since when the guest stands still, and ran when the target's ran.
	began, stopped, ran time.Time
}

// Ran notes that the target's agent has said that the guest of a migration runs there, and for how long.
func (c *Copies) Ran(migration types.UID, since time.Duration) {
	begun := c.Find(migration)
	if begun == nil {
		return
	}
	begun.mu.Lock()
	defer begun.mu.Unlock()
	if begun.times.ran.IsZero() {
		begun.times.ran = c.now().Add(-since)
	}
}

// stopped notes since when the guest stands still, and looks at the copy for the last time.
func (c *Copies) stopped(ctx context.Context, begun *Copy, since time.Time) {
	begun.mu.Lock()
	begun.times.stopped = since
	begun.mu.Unlock()
	c.wg.Go(func() {
		progress, err := begun.machine.CopyProgress(context.WithoutCancel(ctx), domainOf(begun.vmi))
		if err == nil && progress != nil && progress.Memory.Total > 0 {
			begun.change(func(s *CopyState) { s.Progress = progress })
		}
	})
}

// sayFigures tells what a migration took, once it is over.
func (c *Copies) sayFigures(ctx context.Context, begun *Copy) {
	begun.mu.Lock()
	t, state := begun.times, begun.state
	begun.mu.Unlock()
	node := begun.vmi.Status.MigrationState.TargetNode
	words := figures(t, &state, c.now())
	log.FromContext(ctx).Info("The migration is over", "node", node, "figures", words)
	// KubeVirt's words, and then the figures.
	c.say(begun.vmi, v1.Migrated, string(v1.Migrated), fmt.Sprintf("The VirtualMachineInstance migrated to node %s: %s.", node, words))
}

// figures are what is known of a migration that is over.
func figures(t times, s *CopyState, now time.Time) string {
	words := []string{fmt.Sprintf("%d ms in all", now.Sub(t.began).Milliseconds())}
	if !t.stopped.IsZero() && t.ran.After(t.stopped) {
		words = append(words, fmt.Sprintf("stood still for %d ms", t.ran.Sub(t.stopped).Milliseconds()))
	}
	if p := s.Progress; p != nil {
		words = append(words, fmt.Sprintf("%d bytes copied in %d passes", p.Memory.Processed+p.Disk.Processed, p.Iteration),
			fmt.Sprintf("%d bytes/s", p.Memory.BytesPerSecond+p.Disk.BytesPerSecond))
		// QEMU measures it each second: a quick migration is over before.
		if s.Dirtied > 0 {
			words = append(words, fmt.Sprintf("the guest changed up to %d bytes/s", s.Dirtied))
		}
		if p.Throttle > 0 {
			words = append(words, fmt.Sprintf("slowed down by %d%%", p.Throttle))
		}
	}
	return strings.Join(words, ", ")
}

// say tells the user of the VMI.
func (c *Copies) say(vmi *v1.VirtualMachineInstance, reason v1.SyncEvent, action, message string) {
	if c.tell != nil {
		c.tell(vmi, reason, action, message)
	}
}
