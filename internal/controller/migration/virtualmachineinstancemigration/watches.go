// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstancemigration

import (
	"context"
	"slices"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/controller/virtualmachineinstance"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// migrationPhaseIndex indexes migrations by their phase.
const migrationPhaseIndex = "status.phase"

// indexForMigrations adds the indexes of migrations to the cache.
func indexForMigrations(indexer client.FieldIndexer) error {
	return kit.AddIndexes(
		indexer,
		kit.IndexBy(&v1.VirtualMachineInstanceMigration{}, kit.VMIIndex,
			func(m *v1.VirtualMachineInstanceMigration) []string {
				return []string{m.Spec.VMIName}
			}),
		kit.IndexBy(&v1.VirtualMachineInstanceMigration{}, migrationPhaseIndex,
			func(m *v1.VirtualMachineInstanceMigration) []string {
				return []string{string(m.Status.Phase)}
			}),
	)
}

// migrationsOfVMI returns the migrations of a VMI.
func (r *Reconciler) migrationsOfVMI(ctx context.Context, vmi client.Object) []ctrl.Request {
	return r.find(ctx, client.InNamespace(vmi.GetNamespace()), client.MatchingFields{kit.VMIIndex: vmi.GetName()})
}

// migrationsOfPod returns the migrations of a launcher Pod's VMI, and the one for which the Pod was created, even if
// that was deleted.
func (r *Reconciler) migrationsOfPod(ctx context.Context, pod client.Object) []ctrl.Request {
	owner := podspec.Owner(pod)
	if owner == nil {
		return nil
	}
	requests := r.find(ctx, client.InNamespace(pod.GetNamespace()), client.MatchingFields{kit.VMIIndex: owner.Name})
	if name := pod.GetAnnotations()[v1.MigrationJobNameAnnotation]; name != "" {
		own := ctrl.Request{NamespacedName: client.ObjectKey{Namespace: pod.GetNamespace(), Name: name}}
		if !slices.Contains(requests, own) {
			requests = append(requests, own)
		}
	}
	return requests
}

// OfState returns the migrations of the VMI whose persistent state is in a claim. The next one starts once the claims
// of the previous one are cleaned up.
func (r *Reconciler) OfState(ctx context.Context, claim client.Object) []ctrl.Request {
	vmi := virtualmachineinstance.UserOfState(claim)
	if vmi == "" {
		return nil
	}
	return r.find(ctx, client.InNamespace(claim.GetNamespace()), client.MatchingFields{kit.VMIIndex: vmi})
}

// waiting returns the migrations that wait for a slot.
func (r *Reconciler) waiting(ctx context.Context, _ client.Object) []ctrl.Request {
	return r.find(ctx, client.MatchingFields{migrationPhaseIndex: string(v1.MigrationPending)})
}

// rejected returns the migrations that may wait for a quota.
func (r *Reconciler) rejected(ctx context.Context, quota client.Object) []ctrl.Request {
	return r.find(ctx, client.InNamespace(quota.GetNamespace()),
		client.MatchingFields{migrationPhaseIndex: string(v1.MigrationPending)})
}

func (r *Reconciler) find(ctx context.Context, options ...client.ListOption) []ctrl.Request {
	return kit.Requests(ctx, r.Client, &v1.VirtualMachineInstanceMigrationList{}, options...)
}

// FreesSlot accepts changes after which another migration may start: a migration has ended, was deleted, was rejected
// by a quota, or has started, because the next slot goes to another namespace.
var FreesSlot = kit.ExceptCreations(kit.Updates(mayFreeSlot))

// AgentSilent accepts changes that free slots of the cluster although no migration has ended, because the source's node
// was lost.
var AgentSilent = kit.ExceptDeletions(
	kit.ExceptCreations(kit.Updates(func(before, after *v1.VirtualMachineInstance) bool {
		return !vmistatus.Lost(&before.Status) && vmistatus.Lost(&after.Status)
	})))

// mayGrow accepts changes of quotas after which a rejected Pod may be accepted.
var mayGrow = kit.ExceptCreations(predicate.Funcs{})
