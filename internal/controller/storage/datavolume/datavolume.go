// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package datavolume reads the DataVolumes of the Containerized Data Importer, which is optional and may be installed
// or removed while virt-controller runs.
package datavolume

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/api/cdi"
	"github.com/vireo-project/vireo/internal/controller/optional"
)

// Reasons of a DataVolume's conditions. Source: kubevirt/kubevirt pkg/storage/types, HasDataVolumeErrors and
// HasDataVolumeExceededQuotaError.
const (
	reasonError           = "Error"
	reasonImagePullFailed = "ImagePullFailed"
	reasonExceededQuota   = "ErrExceededQuota"
)

// Usable reports whether a VM may use the claim: it is filled, or will be filled when a Pod uses it.
func Usable(dv *cdi.DataVolume) bool {
	return dv.Status.Phase == cdi.DataVolumeSucceeded || dv.Status.Phase == cdi.DataVolumePendingPopulation
}

// WaitsForConsumer reports whether the claim is filled only after a Pod has used it, which must not be the VM's
// launcher Pod.
func WaitsForConsumer(dv *cdi.DataVolume) bool {
	return dv.Status.Phase == cdi.DataVolumeWaitForFirstConsumer
}

// Provisioning reports whether the importer is filling the claim.
func Provisioning(dv *cdi.DataVolume) bool {
	if Usable(dv) {
		return false
	}
	bound := dv.Status.Condition(cdi.DataVolumeBound)
	return !WaitsForConsumer(dv) || bound != nil && bound.Status == corev1.ConditionTrue
}

// Failed reports whether the importer has failed for good.
func Failed(dv *cdi.DataVolume) bool { return dv.Status.Phase == cdi.DataVolumeFailed }

// Problem returns what prevents the importer from filling the claim, or "".
func Problem(dv *cdi.DataVolume) string {
	if Failed(dv) {
		return fmt.Sprintf("DataVolume %s is in Failed phase", dv.Name)
	}
	running := dv.Status.Condition(cdi.DataVolumeRunning)
	if running != nil && running.Status == corev1.ConditionFalse &&
		(running.Reason == reasonError || running.Reason == reasonImagePullFailed) {
		return fmt.Sprintf("DataVolume %s importer has stopped running due to an error: %s", dv.Name, running.Message)
	}
	return ""
}

// ExceedsQuota returns the importer's message if a quota is exceeded, or "".
func ExceedsQuota(dv *cdi.DataVolume) string {
	bound := dv.Status.Condition(cdi.DataVolumeBound)
	if dv.Status.Phase != cdi.DataVolumePending || bound == nil || bound.Status == corev1.ConditionTrue ||
		bound.Reason != reasonExceededQuota {
		return ""
	}
	return fmt.Sprintf("DataVolume %s importer is not running due to an error: %s", dv.Name, bound.Message)
}

// Filled reports whether a claim has its content: no DataVolume owns it, or the importer has filled it. Otherwise,
// problem says what users have to do, or is empty if they only have to wait.
func Filled(
	ctx context.Context, reader Reader, claim *corev1.PersistentVolumeClaim,
) (filled bool, problem string, err error) {
	owner := metav1.GetControllerOf(claim)
	if owner == nil || owner.Kind != "DataVolume" || owner.APIVersion != cdi.GroupVersion.String() {
		return true, "", nil
	}
	dv, err := reader.Get(ctx, client.ObjectKey{Namespace: claim.Namespace, Name: owner.Name})
	switch {
	case errors.Is(err, ErrNotInstalled):
		return false, ErrNotInstalled.Error(), nil
	case apierrors.IsNotFound(err):
		return false, "", nil // The cache is stale, or the claim is about to be deleted with its owner.
	case err != nil:
		return false, "", err
	default:
		return dv.Status.Phase == cdi.DataVolumeSucceeded, "", nil
	}
}

// CRD is the name of the CustomResourceDefinition of DataVolumes.
const CRD = "datavolumes.cdi.kubevirt.io"

// ErrNotInstalled is returned if the CustomResourceDefinition of DataVolumes is not installed.
var ErrNotInstalled = errors.New("the cluster has no DataVolumes (there is no CustomResourceDefinition " + CRD +
	"): install the Containerized Data Importer (CDI), or name a PersistentVolumeClaim in the volume")

// Reader reads DataVolumes.
type Reader interface {
	// Get reads a DataVolume. It returns ErrNotInstalled if the cluster has no DataVolumes, and NotFound if this one does
	// not exist.
	Get(ctx context.Context, key client.ObjectKey) (*cdi.DataVolume, error)
}

// Change is the key of a DataVolume that was created, changed or deleted. It is empty if the CustomResourceDefinition
// of DataVolumes was installed or removed.
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

// List returns the DataVolumes of a namespace. They belong to the cache and must not be changed. It returns
// ErrNotInstalled if the cluster has no DataVolumes, and optional.ErrUnknown until that is known.
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
