// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineclone

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/api/snapshot"
	snapshotv1beta1 "github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/snapshot/capture"
	"github.com/vireo-project/vireo/internal/snapshot/clone"
)

// read reads an object of the clone's namespace. It returns nil for one that does not exist: the API server is asked if the cache has
// none, because the cache may be behind.
func read[T client.Object](ctx context.Context, s *Scope, name string, fresh func() T) (T, error) {
	var none T
	key := client.ObjectKey{Namespace: s.Clone.Namespace, Name: name}
	for _, from := range []client.Reader{s.Client, s.APIReader} {
		into := fresh()
		err := from.Get(ctx, key, into)
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			return none, fmt.Errorf("get %T %s: %w", into, key, err)
		default:
			return into, nil
		}
	}
	return none, nil
}

func newVM() *v1.VirtualMachine { return &v1.VirtualMachine{} }

func newSnapshot() *snapshotv1beta1.VirtualMachineSnapshot {
	return &snapshotv1beta1.VirtualMachineSnapshot{}
}

func newContent() *snapshotv1beta1.VirtualMachineSnapshotContent {
	return &snapshotv1beta1.VirtualMachineSnapshotContent{}
}

func newRestore() *snapshotv1beta1.VirtualMachineRestore {
	return &snapshotv1beta1.VirtualMachineRestore{}
}

func newClaim() *corev1.PersistentVolumeClaim { return &corev1.PersistentVolumeClaim{} }

// readWorld reads what the next step depends on.
func (s *Scope) readWorld(ctx context.Context) (world clone.World, err error) {
	world = clone.World{Now: s.Now, Clone: s.Clone}
	needs := clone.NeedsOf(s.Clone)
	if needs.Snapshot {
		if world.Snapshot, err = read(ctx, s, clone.SnapshotName(s.Clone), newSnapshot); err != nil {
			return world, err
		}
	}
	if needs.Source && world.Snapshot == nil {
		if world.Source, err = read(ctx, s, s.Clone.Spec.Source.Name, newVM); err != nil {
			return world, err
		}
	}
	if needs.Content && world.Snapshot != nil && clone.IsReady(world.Snapshot) {
		if world.Content, err = read(ctx, s, capture.ContentName(world.Snapshot), newContent); err != nil {
			return world, err
		}
	}
	if needs.Restore {
		if world.Restore, err = read(ctx, s, clone.RestoreName(s.Clone), newRestore); err != nil {
			return world, err
		}
	}
	if needs.Target {
		if world.Target, err = read(ctx, s, clone.TargetName(s.Clone), newVM); err != nil {
			return world, err
		}
	}
	if needs.Claims && world.Target != nil {
		world.Claims, err = s.readClaims(ctx, world.Restore)
	}
	return world, err
}

// readClaims reads the claims that the restore has made. Somebody may have deleted the restore: then their annotation names it.
func (s *Scope) readClaims(ctx context.Context, of *snapshotv1beta1.VirtualMachineRestore) ([]*corev1.PersistentVolumeClaim, error) {
	var out []*corev1.PersistentVolumeClaim
	if of != nil && of.Status != nil && ptr.Deref(of.Status.Complete, false) {
		for i := range of.Status.Restores {
			claim, err := read(ctx, s, of.Status.Restores[i].PersistentVolumeClaimName, newClaim)
			if err != nil {
				return nil, err
			}
			if claim != nil {
				out = append(out, claim)
			}
		}
		return out, nil
	}
	list := &corev1.PersistentVolumeClaimList{}
	if err := s.APIReader.List(ctx, list, client.InNamespace(s.Clone.Namespace)); err != nil {
		return nil, fmt.Errorf("list PersistentVolumeClaims of namespace %s: %w", s.Clone.Namespace, err)
	}
	for i := range list.Items {
		if list.Items[i].Annotations[snapshot.RestoreNameAnnotation] == clone.RestoreName(s.Clone) {
			out = append(out, &list.Items[i])
		}
	}
	return out, nil
}
