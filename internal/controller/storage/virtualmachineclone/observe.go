// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineclone

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/api/snapshot"
	snapshotv1beta1 "github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/decide/clone"
	"github.com/vireo-project/vireo/internal/decide/snapshot/capture"
)

// read reads an object of the clone's namespace, or returns nil if it does not exist. If the cache does not have it, it
// is read from the API server, because the cache may be stale.
func read[T client.Object](ctx context.Context, s *scope, name string, object T) (T, error) {
	return kit.Read(ctx, client.ObjectKey{Namespace: s.clone.Namespace, Name: name}, object, s.Client, s.APIReader)
}

// observe reads what the next step depends on.
func (s *scope) observe(ctx context.Context) (observed clone.Observed, err error) {
	observed = clone.Observed{Now: s.now, Clone: s.clone}
	needs := clone.NeedsOf(s.clone)
	if needs.Snapshot {
		if observed.Snapshot, err = read(ctx, s, clone.SnapshotName(s.clone),
			&snapshotv1beta1.VirtualMachineSnapshot{}); err != nil {
			return observed, err
		}
	}
	if needs.Source && observed.Snapshot == nil {
		if observed.Source, err = read(ctx, s, s.clone.Spec.Source.Name, &v1.VirtualMachine{}); err != nil {
			return observed, err
		}
	}
	if needs.Content && observed.Snapshot != nil && clone.IsReady(observed.Snapshot) {
		if observed.Content, err = read(ctx, s, capture.ContentName(observed.Snapshot),
			&snapshotv1beta1.VirtualMachineSnapshotContent{}); err != nil {
			return observed, err
		}
	}
	if needs.Restore {
		if observed.Restore, err = read(ctx, s, clone.RestoreName(s.clone),
			&snapshotv1beta1.VirtualMachineRestore{}); err != nil {
			return observed, err
		}
	}
	if needs.Target {
		if observed.Target, err = read(ctx, s, clone.TargetName(s.clone), &v1.VirtualMachine{}); err != nil {
			return observed, err
		}
	}
	if needs.Claims && observed.Target != nil {
		observed.Claims, err = s.readClaims(ctx, observed.Restore)
	}
	return observed, err
}

// readClaims reads the claims that the restore has created: those in its status if it is complete, or else those whose
// annotation has its name, as after its deletion.
func (s *scope) readClaims(
	ctx context.Context, vmRestore *snapshotv1beta1.VirtualMachineRestore,
) ([]*corev1.PersistentVolumeClaim, error) {
	if vmRestore != nil && vmRestore.Status != nil && ptr.Deref(vmRestore.Status.Complete, false) {
		var out []*corev1.PersistentVolumeClaim
		for i := range vmRestore.Status.Restores {
			claim, err := read(ctx, s, vmRestore.Status.Restores[i].PersistentVolumeClaimName, &corev1.PersistentVolumeClaim{})
			if err != nil {
				return nil, err
			}
			if claim != nil {
				out = append(out, claim)
			}
		}
		return out, nil
	}
	name := clone.RestoreName(s.clone)
	// The cache suffices while a claim is waiting. The list of the API server, which has no index, is read only once: if
	// no claim is waiting, the clone does not need the restore any more.
	cached := &corev1.PersistentVolumeClaimList{}
	err := s.Client.List(ctx, cached, client.InNamespace(s.clone.Namespace), client.MatchingFields{ClaimIndex: name},
		client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("list the PersistentVolumeClaims of VirtualMachineRestore %s/%s: %w", s.clone.Namespace, name,
			err)
	}
	claims := pointers(cached.Items)
	if slices.ContainsFunc(claims, clone.IsWaiting) {
		return claims, nil
	}
	current, err := kit.Current(ctx, s.APIReader, corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaim"),
		s.clone.Namespace, cached.Items,
		func(claim metav1.Object) bool { return claim.GetAnnotations()[snapshot.RestoreNameAnnotation] == name })
	return pointers(current), err
}

func pointers(claims []corev1.PersistentVolumeClaim) []*corev1.PersistentVolumeClaim {
	out := make([]*corev1.PersistentVolumeClaim, 0, len(claims))
	for i := range claims {
		out = append(out, &claims[i])
	}
	return out
}
