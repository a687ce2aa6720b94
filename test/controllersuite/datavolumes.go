// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package controllersuite

import (
	"context"

	. "github.com/onsi/ginkgo/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/vireo-project/vireo/api/cdi"
	"github.com/vireo-project/vireo/internal/controller/storage/datavolume"
	"github.com/vireo-project/vireo/test/builder"
)

// DataVolumes reads DataVolumes from the suite's API server. It triggers no reconciliation.
type DataVolumes struct{}

// Get reads a DataVolume.
func (DataVolumes) Get(ctx context.Context, key client.ObjectKey) (*cdi.DataVolume, error) {
	dv := &cdi.DataVolume{}
	return dv, K8sClient.Get(ctx, key, dv)
}

// List reads the DataVolumes of a namespace.
func (DataVolumes) List(ctx context.Context, namespace string) ([]cdi.DataVolume, error) {
	list := &cdi.DataVolumeList{}
	err := K8sClient.List(ctx, list, client.InNamespace(namespace))
	return list.Items, err
}

// Source returns nil.
func (DataVolumes) Source(func(context.Context, datavolume.Change) []reconcile.Request) *datavolume.Source {
	return nil
}

// NoDataVolumes is a cluster without DataVolumes.
type NoDataVolumes struct{ DataVolumes }

// Get returns datavolume.ErrNotInstalled.
func (NoDataVolumes) Get(context.Context, client.ObjectKey) (*cdi.DataVolume, error) {
	return nil, datavolume.ErrNotInstalled
}

// List returns datavolume.ErrNotInstalled.
func (NoDataVolumes) List(context.Context, string) ([]cdi.DataVolume, error) {
	return nil, datavolume.ErrNotInstalled
}

// DataVolume returns a DataVolume with this name.
func DataVolume(ns, name string) *cdi.DataVolume {
	return &cdi.DataVolume{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}}
}

// FillDataVolume writes a DataVolume's phase and conditions, as the importer does.
func FillDataVolume(dv *cdi.DataVolume, phase cdi.DataVolumePhase, conditions ...cdi.DataVolumeCondition) {
	GinkgoHelper()
	ExpectExists(dv)
	dv.Status = cdi.DataVolumeStatus{Phase: phase, Conditions: conditions}
	ExpectStatus(dv)
}

// DataVolumeCondition returns a condition of a DataVolume.
func DataVolumeCondition(kind cdi.DataVolumeConditionType, status corev1.ConditionStatus, reason, message string,
) cdi.DataVolumeCondition {
	return cdi.DataVolumeCondition{Type: kind, Status: status, Reason: reason, Message: message}
}

// ProvideClaim creates the claim of a DataVolume, as the importer does.
func ProvideClaim(dv *cdi.DataVolume, bound bool) {
	GinkgoHelper()
	ExpectExists(dv)
	b := builder.MakePVC(dv.Name).Namespace(dv.Namespace)
	if bound {
		b = b.Bound("1Gi")
	}
	claim := b.Obj()
	claim.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(dv, cdi.GroupVersion.WithKind("DataVolume"))}
	ExpectCreated(claim)
}
