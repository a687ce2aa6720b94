// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstancemigration

import (
	"slices"
	"time"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// firstBackoff is how long nobody tries again after one failure; it doubles with each further one. KubeVirt's value.
const firstBackoff = 20 * time.Second

// maxDoublings keeps the doubling within what a duration holds. No more than retained migrations are counted anyway.
const maxDoublings = 20

// automatic says that the system asked for a migration, which asks again when it fails: only such are slowed down.
func automatic(m *v1.VirtualMachineInstanceMigration) bool {
	_, evacuates := m.Annotations[v1.EvacuationMigrationAnnotation]
	_, updates := m.Annotations[v1.WorkloadUpdateMigrationAnnotation]
	return evacuates || updates
}

// backoff is how long a migration has to wait because those before it failed. Siblings are the migrations of its VMI.
func backoff(m *v1.VirtualMachineInstanceMigration, siblings []*v1.VirtualMachineInstanceMigration, now time.Time) time.Duration {
	if !automatic(m) {
		return 0
	}
	earlier := slices.DeleteFunc(slices.Clone(siblings), func(o *v1.VirtualMachineInstanceMigration) bool {
		return o.UID == m.UID || !automatic(o) || o.CreationTimestamp.After(m.CreationTimestamp.Time)
	})
	slices.SortFunc(earlier, func(a, b *v1.VirtualMachineInstanceMigration) int {
		return b.CreationTimestamp.Compare(a.CreationTimestamp.Time)
	})
	failures, last := 0, time.Time{}
	for _, o := range earlier {
		if o.Status.Phase == v1.MigrationSucceeded {
			break
		}
		if o.Status.Phase != v1.MigrationFailed || o.DeletionTimestamp != nil {
			continue // One that was canceled says nothing about the next.
		}
		failures++
		if at := enteredAt(&o.Status, v1.MigrationFailed); at.After(last) {
			last = at
		}
	}
	if failures == 0 {
		return 0
	}
	return max(0, last.Add(firstBackoff<<min(failures-1, maxDoublings)).Sub(now))
}

func enteredAt(status *v1.VirtualMachineInstanceMigrationStatus, phase v1.VirtualMachineInstanceMigrationPhase) time.Time {
	for _, stamp := range status.PhaseTransitionTimestamps {
		if stamp.Phase == phase {
			return stamp.PhaseTransitionTimestamp.Time
		}
	}
	return time.Time{}
}
