// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachine

import (
	"context"
	"fmt"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// readMigrations finds out whether a migration of the instance has a target. Its Pod was made for the spec that the
// instance had then, so that from then on the instance does not follow the template: the migration would fail.
func (s *Scope) readMigrations(ctx context.Context) error {
	if s.migrates = vmistatus.Migrating(&s.VMI.Status); s.migrates {
		return nil
	}
	list := &v1.VirtualMachineInstanceMigrationList{}
	if err := s.Client.List(ctx, list, client.InNamespace(s.VMI.Namespace),
		client.MatchingFields{kit.VMIIndex: s.VMI.Name}); err != nil {
		return fmt.Errorf("list the migrations of VirtualMachineInstance %s: %w", client.ObjectKeyFromObject(s.VMI), err)
	}
	for i := range list.Items {
		m := &list.Items[i]
		over := s.VMI.Status.MigrationState != nil && s.VMI.Status.MigrationState.MigrationUID == m.UID
		s.migrates = s.migrates || !m.IsQueued() && !m.IsFinal() && !over
	}
	return nil
}

// vmOfMigration returns the VM whose VMI migrates.
func vmOfMigration(_ context.Context, object client.Object) []ctrl.Request {
	m, ok := object.(*v1.VirtualMachineInstanceMigration)
	if !ok {
		return nil
	}
	return []ctrl.Request{{NamespacedName: client.ObjectKey{Namespace: m.Namespace, Name: m.Spec.VMIName}}}
}

// migrationEnded passes migrations that have ended: the instance may follow the template again. If the migration was
// assigned, the VMI has changed before.
var migrationEnded = predicate.Funcs{
	CreateFunc: func(event.CreateEvent) bool { return false },
	UpdateFunc: kit.Updates(func(before, after *v1.VirtualMachineInstanceMigration) bool {
		return !before.IsFinal() && after.IsFinal()
	}).UpdateFunc,
	DeleteFunc: func(e event.DeleteEvent) bool {
		m, ok := e.Object.(*v1.VirtualMachineInstanceMigration)
		return ok && !m.IsFinal()
	},
}
