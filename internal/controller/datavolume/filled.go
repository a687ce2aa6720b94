// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package datavolume

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/api/cdi"
)

// Filled reports whether a claim has its content: no DataVolume owns it, or the importer has filled it. Otherwise, problem says what users
// have to do, or is empty if they only have to wait.
func Filled(ctx context.Context, reader Reader, claim *corev1.PersistentVolumeClaim) (filled bool, problem string, err error) {
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
