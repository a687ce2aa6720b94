// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachinerestore

import (
	"context"
	"errors"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/api/cdi"
	"github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/datavolume"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/controller/volumesnapshot"
	"github.com/vireo-project/vireo/internal/snapshot/capture"
	"github.com/vireo-project/vireo/internal/snapshot/restore"
)

// readTarget reads the target.
func (s *Scope) readTarget(ctx context.Context, from client.Reader) (err error) {
	s.target, err = kit.Read(ctx, s.key(s.Restore.Spec.Target.Name), &v1.VirtualMachine{}, from)
	return err
}

// observe reads what the next step depends on. Objects in lists belong to the cache and must not be changed.
func observe(ctx context.Context, s *Scope) (restore.Observed, error) {
	observed := restore.Observed{Now: s.Now, Restore: s.Restore, Target: s.target, Patches: s.patches}
	for _, part := range []func(context.Context, *restore.Observed) error{
		s.readInstance, s.readSnapshot, s.readClaims, s.readDataVolumes, s.readVolumeSnapshots, s.readRevisions, s.readStorageClasses,
	} {
		if err := part(ctx, &observed); err != nil {
			return observed, err
		}
	}
	return observed, nil
}

// readInstance reads the target's VMI. The cache may be stale and not show a VMI that was created before the target was
// locked.
func (s *Scope) readInstance(ctx context.Context, observed *restore.Observed) error {
	if s.target == nil {
		return nil
	}
	var err error
	s.vmi, err = kit.Read(ctx, client.ObjectKeyFromObject(s.target), &v1.VirtualMachineInstance{}, s.Client, s.APIReader)
	observed.Running = s.vmi != nil
	return err
}

// key returns the key of an object in the namespace of the restore.
func (s *Scope) key(name string) client.ObjectKey {
	return client.ObjectKey{Namespace: s.Restore.Namespace, Name: name}
}

func (s *Scope) readSnapshot(ctx context.Context, observed *restore.Observed) (err error) {
	observed.Snapshot, err = kit.Read(ctx, s.key(s.Restore.Spec.VirtualMachineSnapshotName), &v1beta1.VirtualMachineSnapshot{}, s.Client)
	if err != nil || observed.Snapshot == nil {
		return err
	}
	content, err := kit.Read(ctx, s.key(capture.ContentName(observed.Snapshot)), &v1beta1.VirtualMachineSnapshotContent{}, s.Client)
	if content != nil && capture.IsContentOf(content, observed.Snapshot) {
		observed.Content = content
	}
	return err
}

func (s *Scope) readClaims(ctx context.Context, observed *restore.Observed) error {
	list := &corev1.PersistentVolumeClaimList{}
	if err := s.Client.List(ctx, list, client.InNamespace(s.Restore.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list PersistentVolumeClaims of namespace %s: %w", s.Restore.Namespace, err)
	}
	observed.Claims = make(map[string]*corev1.PersistentVolumeClaim, len(list.Items))
	for i := range list.Items {
		observed.Claims[list.Items[i].Name] = &list.Items[i]
	}
	return nil
}

func (s *Scope) readDataVolumes(ctx context.Context, observed *restore.Observed) error {
	list, err := s.DataVolumes.List(ctx, s.Restore.Namespace)
	switch {
	case errors.Is(err, datavolume.ErrNotInstalled):
		observed.NoDataVolumes = err
		return nil
	case err != nil:
		return err
	}
	observed.DataVolumes = make(map[string]*cdi.DataVolume, len(list))
	for i := range list {
		observed.DataVolumes[list[i].Name] = &list[i]
	}
	return nil
}

// readVolumeSnapshots reads the VolumeSnapshots of the content, which are needed until the target is restored.
func (s *Scope) readVolumeSnapshots(ctx context.Context, observed *restore.Observed) (err error) {
	if observed.Content == nil || observed.Restored() {
		return nil
	}
	observed.VolumeSnapshots, err = volumesnapshot.OfContent(ctx, s.VolumeSnapshots, observed.Content)
	return err
}

// readRevisions reads the ControllerRevisions from the API server, because the cache contains only those with an owner.
func (s *Scope) readRevisions(ctx context.Context, observed *restore.Observed) error {
	observed.Revisions = map[string]*appsv1.ControllerRevision{}
	for _, names := range restore.Revisions(s.Restore, observed.Content) {
		for _, name := range []string{names.From, names.To} {
			revision, err := kit.Read(ctx, s.key(name), &appsv1.ControllerRevision{}, s.APIReader)
			if err != nil {
				return err
			}
			if revision != nil {
				observed.Revisions[name] = revision
			}
		}
	}
	return nil
}

func (s *Scope) readStorageClasses(ctx context.Context, observed *restore.Observed) error {
	list := &storagev1.StorageClassList{}
	if err := s.Client.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list StorageClasses: %w", err)
	}
	observed.BindingModes = make(map[string]storagev1.VolumeBindingMode, len(list.Items))
	for i := range list.Items {
		observed.BindingModes[list.Items[i].Name] = ptr.Deref(list.Items[i].VolumeBindingMode, storagev1.VolumeBindingImmediate)
	}
	return nil
}
