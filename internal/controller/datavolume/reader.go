// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package datavolume reads the DataVolumes of the Containerized Data Importer, which is optional and may be installed or removed while
// virt-controller runs.
package datavolume

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/api/cdi"
	"github.com/vireo-project/vireo/internal/controller/optional"
)

// CRD is the name of the CustomResourceDefinition of DataVolumes.
const CRD = "datavolumes.cdi.kubevirt.io"

// ErrNotInstalled is returned if the CustomResourceDefinition of DataVolumes is not installed.
var ErrNotInstalled = errors.New("the cluster has no DataVolumes (there is no CustomResourceDefinition " + CRD +
	"): install the Containerized Data Importer (CDI), or name a PersistentVolumeClaim in the volume")

// Reader reads DataVolumes.
type Reader interface {
	// Get reads a DataVolume. It returns ErrNotInstalled if the cluster has no DataVolumes, and NotFound if this one does not exist.
	Get(ctx context.Context, key client.ObjectKey) (*cdi.DataVolume, error)
}

// Change is the key of a DataVolume that was created, changed or deleted. It is empty if the CustomResourceDefinition of DataVolumes
// was installed or removed.
type Change = optional.Change

// Source enqueues objects when DataVolumes change.
type Source = optional.Source

// Store caches the cluster's DataVolumes. Make one with NewStore and add it to the manager.
type Store struct{ *optional.Store }

// NewStore makes a Store. The scheme needs the kinds of package cdi.
func NewStore(config *rest.Config, httpClient *http.Client, scheme *runtime.Scheme) *Store {
	return &Store{optional.NewStore(config, httpClient, scheme, optional.Kind{
		CRD: CRD, New: func() client.Object { return &cdi.DataVolume{} },
	})}
}

// Get implements Reader.
func (s *Store) Get(ctx context.Context, key client.ObjectKey) (*cdi.DataVolume, error) {
	reader, err := s.Reader()
	if err != nil {
		return nil, notInstalled(err)
	}
	return clientReader{reader}.Get(ctx, key)
}

// List returns the DataVolumes of a namespace. They belong to the cache and must not be changed. It returns ErrNotInstalled if the cluster
// has no DataVolumes, and optional.ErrUnknown until that is known.
func (s *Store) List(ctx context.Context, namespace string) ([]cdi.DataVolume, error) {
	reader, err := s.Reader()
	if err != nil {
		return nil, notInstalled(err)
	}
	list := &cdi.DataVolumeList{}
	if err := reader.List(ctx, list, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list DataVolumes of namespace %s: %w", namespace, err)
	}
	return list.Items, nil
}

func notInstalled(err error) error {
	if errors.Is(err, optional.ErrAbsent) {
		return ErrNotInstalled
	}
	return fmt.Errorf("read DataVolumes: %w", err)
}

type clientReader struct{ client.Reader }

// Get implements Reader.
func (r clientReader) Get(ctx context.Context, key client.ObjectKey) (*cdi.DataVolume, error) {
	dv := &cdi.DataVolume{}
	err := r.Reader.Get(ctx, key, dv)
	switch {
	case meta.IsNoMatchError(err):
		return nil, ErrNotInstalled
	case err != nil:
		return nil, fmt.Errorf("get DataVolume %s: %w", key, err)
	}
	return dv, nil
}
