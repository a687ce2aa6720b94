// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachinerestore

import (
	"context"
	"errors"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/api/cdi"
	"github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/controller/storage/datavolume"
	"github.com/vireo-project/vireo/internal/controller/storage/volumesnapshot"
	"github.com/vireo-project/vireo/internal/decide/restore"
	"github.com/vireo-project/vireo/internal/decide/snapshot/capture"
)

// readTarget reads the target.
func (s *scope) readTarget(ctx context.Context, from client.Reader) (err error) {
	s.target, err = kit.Read(ctx, s.key(s.restore.Spec.Target.Name), &v1.VirtualMachine{}, from)
	return err
}

// observe reads what the next step depends on. Objects in lists belong to the cache and must not be changed.
func observe(ctx context.Context, s *scope) (restore.Observed, error) {
	observed := restore.Observed{Now: s.now, Restore: s.restore, Target: s.target, Patches: &s.patches}
	for _, part := range []func(context.Context, *restore.Observed) error{
		s.readInstance, s.readSnapshot, s.readClaims, s.readDataVolumes, s.readVolumeSnapshots, s.readRevisions,
		s.readStorageClasses,
	} {
		if err := part(ctx, &observed); err != nil {
			return observed, err
		}
	}
	return observed, nil
}

// readInstance reads the target's VMI. The cache may be stale and not show a VMI that was created before the target was
// locked.
func (s *scope) readInstance(ctx context.Context, observed *restore.Observed) error {
	if s.target == nil {
		return nil
	}
	var err error
	s.vmi, err = kit.Read(ctx, client.ObjectKeyFromObject(s.target), &v1.VirtualMachineInstance{}, s.Client, s.APIReader)
	observed.Running = s.vmi != nil
	return err
}

// key returns the key of an object in the namespace of the restore.
func (s *scope) key(name string) client.ObjectKey {
	return client.ObjectKey{Namespace: s.restore.Namespace, Name: name}
}

func (s *scope) readSnapshot(ctx context.Context, observed *restore.Observed) (err error) {
	observed.Snapshot, err = kit.Read(ctx, s.key(s.restore.Spec.VirtualMachineSnapshotName),
		&v1beta1.VirtualMachineSnapshot{}, s.Client)
	if err != nil || observed.Snapshot == nil {
		return err
	}
	content, err := kit.Read(ctx, s.key(capture.ContentName(observed.Snapshot)), &v1beta1.VirtualMachineSnapshotContent{},
		s.Client)
	if content != nil && capture.IsContentOf(content, observed.Snapshot) {
		observed.Content = content
	}
	return err
}

func (s *scope) readClaims(ctx context.Context, observed *restore.Observed) (err error) {
	observed.Claims, err = kit.Claims(ctx, s.Client, s.restore.Namespace)
	return err
}

func (s *scope) readDataVolumes(ctx context.Context, observed *restore.Observed) error {
	list, err := s.DataVolumes.List(ctx, s.restore.Namespace)
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
func (s *scope) readVolumeSnapshots(ctx context.Context, observed *restore.Observed) (err error) {
	if observed.Content == nil || observed.Restored() {
		return nil
	}
	observed.VolumeSnapshots, err = volumesnapshot.OfContent(ctx, s.VolumeSnapshots, observed.Content)
	return err
}

// readRevisions reads the ControllerRevisions from the API server, because the cache contains only those with an owner.
func (s *scope) readRevisions(ctx context.Context, observed *restore.Observed) error {
	observed.Revisions = map[string]*appsv1.ControllerRevision{}
	for _, names := range restore.Revisions(s.restore, observed.Content) {
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

func (s *scope) readStorageClasses(ctx context.Context, observed *restore.Observed) error {
	list := &storagev1.StorageClassList{}
	if err := s.Client.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list StorageClasses: %w", err)
	}
	observed.BindingModes = make(map[string]storagev1.VolumeBindingMode, len(list.Items))
	for i := range list.Items {
		observed.BindingModes[list.Items[i].Name] = ptr.Deref(list.Items[i].VolumeBindingMode,
			storagev1.VolumeBindingImmediate)
	}
	return nil
}
