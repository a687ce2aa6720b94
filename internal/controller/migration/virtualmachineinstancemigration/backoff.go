// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstancemigration

import (
	"slices"
	"time"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// firstBackoff is the delay after the first failure. It doubles with each further failure. KubeVirt's value.
const firstBackoff = 20 * time.Second

// maxDoublings prevents an overflow of the delay. No more than maxRetained migrations are counted anyway.
const maxDoublings = 20

// automatic reports whether virt-controller created a migration. Only these are delayed, because virt-controller
// retries them.
func automatic(m *v1.VirtualMachineInstanceMigration) bool {
	_, evacuates := m.Annotations[v1.EvacuationMigrationAnnotation]
	_, updates := m.Annotations[v1.WorkloadUpdateMigrationAnnotation]
	return evacuates || updates
}

// backoff returns for how long a migration is delayed because earlier ones failed. Siblings are the migrations of its
// VMI.
func backoff(
	m *v1.VirtualMachineInstanceMigration, siblings []*v1.VirtualMachineInstanceMigration, now time.Time,
) time.Duration {
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
			continue // Canceled, not failed.
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

func enteredAt(
	status *v1.VirtualMachineInstanceMigrationStatus, phase v1.VirtualMachineInstanceMigrationPhase,
) time.Time {
	for _, stamp := range status.PhaseTransitionTimestamps {
		if stamp.Phase == phase {
			return stamp.PhaseTransitionTimestamp.Time
		}
	}
	return time.Time{}
}
