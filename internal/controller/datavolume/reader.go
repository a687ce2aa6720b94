// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package datavolume reads the DataVolumes of the Containerized Data Importer, which is optional and may be installed or removed
// while we run.
package datavolume

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/api/cdi"
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
