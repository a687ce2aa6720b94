// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachinesnapshotcontent

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/decide/snapshot/capture"
)

// migrationWait is how long a freeze waits at most for a migration. A migration waits for a freeze, and would never
// start while snapshots of the guest are taken in a loop. The time is limited because the migration may wait for
// something else.
const migrationWait = 30 * time.Second

// waitsForMigration reports whether the freeze has to wait because a migration of the guest has been waiting since
// before the VM was locked.
func (s *scope) waitsForMigration(ctx context.Context, vmi *v1.VirtualMachineInstance) (bool, error) {
	wait := migrationWait
	if deadline := capture.Deadline(s.snapshot); !deadline.IsZero() {
		wait = min(wait, deadline.Sub(s.content.CreationTimestamp.Time)/4)
	}
	left := s.content.CreationTimestamp.Add(wait).Sub(s.now)
	if left <= 0 {
		return false, nil
	}
	preceded := false
	err := kit.EachMigration(ctx, s.APIReader, client.ObjectKeyFromObject(vmi),
		func(m *v1.VirtualMachineInstanceMigration) {
			preceded = preceded || isPreceded(vmi, m, s.content.CreationTimestamp)
		})
	if err != nil || !preceded {
		return false, err
	}
	s.requeue(left)
	return true, nil
}

// isPreceded reports whether a migration of a VMI was requested before a time, and has not been assigned to the agents.
// From then on, the agents begin no freeze until it has ended.
func isPreceded(vmi *v1.VirtualMachineInstance, m *v1.VirtualMachineInstanceMigration, before metav1.Time) bool {
	state := vmi.Status.MigrationState
	return !m.IsFinal() && m.DeletionTimestamp == nil && !m.CreationTimestamp.After(before.Time) &&
		(state == nil || state.MigrationUID != m.UID)
}

// ofMigration returns the unfinished contents of the VM that migrates.
func (r *Reconciler) ofMigration(ctx context.Context, object client.Object) []ctrl.Request {
	m, ok := object.(*v1.VirtualMachineInstanceMigration)
	if !ok {
		return nil
	}
	return r.find(ctx, m.Namespace, unfinishedIndex, m.Spec.VMIName)
}

// stopsWaiting passes migrations that have left their phase, or are deleted: a freeze may begin.
var stopsWaiting = kit.ExceptCreations(kit.Updates(func(before, after *v1.VirtualMachineInstanceMigration) bool {
	return before.Status.Phase != after.Status.Phase || after.DeletionTimestamp != nil
}))
