// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package volumesnapshot reads the VolumeSnapshots of Kubernetes' external-snapshotter, and finds out which of a VM's
// volumes a snapshot can include. The cluster may not have VolumeSnapshots, their classes or the importer's storage
// profiles, and may get and lose them while virt-controller runs.
package volumesnapshot

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/vireo-project/vireo/api/cdi"
	"github.com/vireo-project/vireo/api/csi"
	"github.com/vireo-project/vireo/internal/controller/optional"
)

// Names of the CustomResourceDefinitions.
const (
	snapshotCRD = "volumesnapshots." + csi.GroupName
	classCRD    = "volumesnapshotclasses." + csi.GroupName
	profileCRD  = "storageprofiles.cdi.kubevirt.io"
)

// ErrNotInstalled is returned if the CustomResourceDefinition of VolumeSnapshots is not installed.
var ErrNotInstalled = errors.New("the cluster has no VolumeSnapshots (there is no CustomResourceDefinition " +
	snapshotCRD +
	"): install Kubernetes' external-snapshotter")

// Reader reads VolumeSnapshots and what determines their classes. Its errors are optional.ErrUnknown while it is
// unknown whether the cluster has a kind.
type Reader interface {
	// Get reads a VolumeSnapshot. It returns ErrNotInstalled if the cluster has none, and NotFound if this one does not
	// exist.
	Get(ctx context.Context, key client.ObjectKey) (*csi.VolumeSnapshot, error)
	// Classes returns the VolumeSnapshotClasses; none if the cluster does not have the kind.
	Classes(ctx context.Context) ([]csi.VolumeSnapshotClass, error)
	// Preferred returns the VolumeSnapshotClasses that the importer's profiles name, by storage class; none if there is no
	// importer.
	Preferred(ctx context.Context) (map[string]string, error)
}

// Store caches VolumeSnapshots, their classes, and storage profiles. Make one with NewStore.
type Store struct{ snapshots, classes, profiles *optional.Store }

var _ Reader = (*Store)(nil)

// NewStore makes a Store. The scheme needs the kinds of the packages csi and cdi.
func NewStore(config *rest.Config, httpClient *http.Client, scheme *runtime.Scheme) *Store {
	store := func(crd string, empty func() client.Object) *optional.Store {
		return optional.NewStore(config, httpClient, scheme, optional.Kind{CRD: crd, New: empty})
	}
	return &Store{
		snapshots: store(snapshotCRD, func() client.Object { return &csi.VolumeSnapshot{} }),
		classes:   store(classCRD, func() client.Object { return &csi.VolumeSnapshotClass{} }),
		profiles:  store(profileCRD, func() client.Object { return &cdi.StorageProfile{} }),
	}
}

// AddTo adds the Store to a manager.
func (s *Store) AddTo(mgr manager.Manager) error {
	return errors.Join(mgr.Add(s.snapshots), mgr.Add(s.classes), mgr.Add(s.profiles))
}

// Get implements Reader.
func (s *Store) Get(ctx context.Context, key client.ObjectKey) (*csi.VolumeSnapshot, error) {
	reader, err := s.snapshots.Reader()
	if err != nil {
		return nil, absent(err)
	}
	found := &csi.VolumeSnapshot{}
	if err := reader.Get(ctx, key, found); err != nil {
		return nil, fmt.Errorf("get VolumeSnapshot %s: %w", key, err)
	}
	return found, nil
}

func absent(err error) error {
	if errors.Is(err, optional.ErrAbsent) {
		return ErrNotInstalled
	}
	return fmt.Errorf("read VolumeSnapshots: %w", err)
}

// Classes implements Reader.
func (s *Store) Classes(ctx context.Context) ([]csi.VolumeSnapshotClass, error) {
	list := &csi.VolumeSnapshotClassList{}
	if err := s.list(ctx, s.classes, list); err != nil {
		return nil, fmt.Errorf("list VolumeSnapshotClasses: %w", err)
	}
	return list.Items, nil
}

// Preferred implements Reader.
func (s *Store) Preferred(ctx context.Context) (map[string]string, error) {
	list := &cdi.StorageProfileList{}
	if err := s.list(ctx, s.profiles, list); err != nil {
		return nil, fmt.Errorf("list StorageProfiles: %w", err)
	}
	return preferred(list.Items), nil
}

func preferred(profiles []cdi.StorageProfile) map[string]string {
	out := map[string]string{}
	for i := range profiles {
		if class := profiles[i].Status.SnapshotClass; class != nil && *class != "" {
			out[profiles[i].Name] = *class
		}
	}
	return out
}

// list lists the objects of a kind. The list stays empty if the cluster does not have it.
func (*Store) list(ctx context.Context, store *optional.Store, list client.ObjectList) error {
	reader, err := store.Reader()
	switch {
	case errors.Is(err, optional.ErrAbsent):
		return nil
	case err != nil:
		return err
	default:
		return reader.List(ctx, list)
	}
}

// OnSnapshot enqueues what users returns when a VolumeSnapshot changes. The key is empty if the kind was installed or
// removed.
func (s *Store) OnSnapshot(users func(context.Context, client.ObjectKey) []reconcile.Request) source.Source {
	return s.snapshots.Source(func(ctx context.Context, change optional.Change) []reconcile.Request {
		return users(ctx, client.ObjectKey(change))
	})
}

// OnClass enqueues what all returns when the choice of classes may change.
func (s *Store) OnClass(all func(context.Context) []reconcile.Request) source.Source {
	users := func(ctx context.Context, _ optional.Change) []reconcile.Request { return all(ctx) }
	return sources{s.classes.Source(users), s.profiles.Source(users)}
}

// sources combines several sources.
type sources []*optional.Source

var _ source.SyncingSource = sources{}

// Start implements source.Source.
func (s sources) Start(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	for _, one := range s {
		if err := one.Start(ctx, queue); err != nil {
			return err
		}
	}
	return nil
}

// WaitForSync implements source.SyncingSource.
func (s sources) WaitForSync(ctx context.Context) error {
	for _, one := range s {
		if err := one.WaitForSync(ctx); err != nil {
			return err
		}
	}
	return nil
}
