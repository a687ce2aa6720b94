// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachine

import (
	"context"
	"errors"
	"fmt"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/api/cdi"
	cdiv1beta1 "github.com/vireo-project/vireo/api/cdi/v1beta1"
)

// dataSourceKind is the only kind that a DataVolume's sourceRef can have.
const dataSourceKind = "DataSource"

// defaultAccount is the ServiceAccount of a VM that names none.
const defaultAccount = "default"

// dataSource reads the DataSource that a DataVolume names, or returns nil if it names none.
func (s *Scope) dataSource(ctx context.Context, ref *cdiv1beta1.DataVolumeSourceRef) (*cdi.DataSource, error) {
	if ref == nil || ref.Kind != dataSourceKind {
		return nil, nil
	}
	key := client.ObjectKey{Namespace: s.VM.Namespace, Name: ref.Name}
	if ref.Namespace != nil && *ref.Namespace != "" {
		key.Namespace = *ref.Namespace
	}
	found := &cdi.DataSource{}
	if err := s.Live.Get(ctx, key, found); err != nil {
		return nil, fmt.Errorf("get DataSource %s: %w", key, err)
	}
	return found, nil
}

// cloneSource is what a DataVolume is copied from, with its namespace, or nil if it is no copy. The DataSource that it names is
// given, if it names one.
func (s *Scope) cloneSource(spec *cdiv1beta1.DataVolumeSpec, named *cdi.DataSource) (*cdiv1beta1.DataVolumeSource, error) {
	namespace, source := s.VM.Namespace, spec.Source
	if named != nil {
		namespace = named.Namespace
		from := named.Spec.Source
		if from.DataSource != nil {
			// The importer resolves a DataSource that stands for another one.
			from = named.Status.Source
		}
		if from.PVC == nil && from.Snapshot == nil {
			return nil, fmt.Errorf("DataSource %s has no source yet: %w", client.ObjectKeyFromObject(named),
				apierrors.NewNotFound(cdi.GroupVersion.WithResource("datasources").GroupResource(), named.Name))
		}
		source = &cdiv1beta1.DataVolumeSource{PVC: from.PVC, Snapshot: from.Snapshot}
	}
	switch {
	case source == nil:
		return nil, nil
	case source.PVC != nil:
		source = source.DeepCopy()
		if source.PVC.Namespace == "" {
			source.PVC.Namespace = namespace
		}
	case source.Snapshot != nil:
		source = source.DeepCopy()
		if source.Snapshot.Namespace == "" {
			source.Snapshot.Namespace = namespace
		}
	default:
		return nil, nil
	}
	return source, nil
}

// authorizeClone says whether the VM's account may copy what the DataVolume is a copy of, and if not tells so. The importer
// asks for the rights of who creates the DataVolume: that is virt-controller, which may copy everything. The rights are those
// that the importer asks for; the annotations by which it goes without are not a way around them here.
// Source: kubevirt/containerized-data-importer-api pkg/apis/core/v1beta1, authorize_utils.go.
func (s *Scope) authorizeClone(ctx context.Context, dv *cdi.DataVolume) (bool, error) {
	if dv.Spec.SourceRef != nil {
		s.failProvision(ReasonFailedDataVolumeCreate, fmt.Errorf("sourceRef of kind %s is not supported, use %s",
			dv.Spec.SourceRef.Kind, dataSourceKind), "Error creating DataVolume "+dv.Name+": %v")
		return false, nil
	}
	source := dv.Spec.Source
	if source == nil || source.PVC == nil && source.Snapshot == nil {
		return true, nil
	}
	var namespace, name string
	anyOf := [][]authorizationv1.ResourceAttributes{}
	if source.PVC != nil {
		namespace, name = source.PVC.Namespace, source.PVC.Name
		anyOf = append(anyOf, []authorizationv1.ResourceAttributes{{Resource: "pods"}})
	} else {
		namespace, name = source.Snapshot.Namespace, source.Snapshot.Name
		anyOf = append(anyOf, []authorizationv1.ResourceAttributes{{Resource: "pods"}, {Resource: "pvcs"}})
	}
	if namespace == s.VM.Namespace {
		return true, s.warnOfMissingSource(ctx, dv)
	}
	anyOf = append([][]authorizationv1.ResourceAttributes{{{
		Group: cdi.GroupVersion.Group, Resource: "datavolumes", Subresource: "source",
	}}}, anyOf...)
	user := serviceaccount.MakeUsername(s.VM.Namespace, s.account())
	for _, allOf := range anyOf {
		allowed, err := s.mayCreate(ctx, namespace, name, allOf)
		if err != nil {
			return false, err
		}
		if allowed {
			// Only now: whether a claim exists is for those to know who may copy it.
			return true, s.warnOfMissingSource(ctx, dv)
		}
	}
	s.failProvision(ReasonUnauthorizedDataVolume, fmt.Errorf("not authorized to create DataVolume: %w", errors.New(
		"User "+user+" has insufficient permissions in clone source namespace "+namespace)),
		"Not authorized to create DataVolume "+dv.Name+": %v")
	s.RequeueAfter = importRetry
	return false, nil
}

// mayCreate asks whether the VM's account has all of some rights.
func (s *Scope) mayCreate(ctx context.Context, namespace, name string, what []authorizationv1.ResourceAttributes) (bool, error) {
	for _, resource := range what {
		resource.Namespace, resource.Name, resource.Verb = namespace, name, "create"
		account := s.account()
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User:               serviceaccount.MakeUsername(s.VM.Namespace, account),
			Groups:             append(serviceaccount.MakeGroupNames(s.VM.Namespace), "system:authenticated"),
			ResourceAttributes: &resource,
		}}
		if err := s.Client.Create(ctx, review); err != nil {
			return false, fmt.Errorf("ask what ServiceAccount %s may do in namespace %s: %w", account, namespace, err)
		}
		if !review.Status.Allowed {
			return false, nil
		}
	}
	return true, nil
}

// account is the ServiceAccount that the VM's Pod has: the one that is named, the one of a volume, or the namespace's default.
func (s *Scope) account() string {
	if name := s.VM.Spec.Template.Spec.ServiceAccountName; name != "" {
		return name
	}
	for i := range s.VM.Spec.Template.Spec.Volumes {
		if account := s.VM.Spec.Template.Spec.Volumes[i].ServiceAccount; account != nil {
			return account.ServiceAccountName
		}
	}
	return defaultAccount
}

// warnOfMissingSource tells that a copy waits for its source: the importer accepts it all the same.
func (s *Scope) warnOfMissingSource(ctx context.Context, dv *cdi.DataVolume) error {
	source := dv.Spec.Source.PVC
	if source == nil {
		return nil
	}
	key := client.ObjectKey{Namespace: source.Namespace, Name: source.Name}
	err := s.Client.Get(ctx, key, &corev1.PersistentVolumeClaim{})
	if apierrors.IsNotFound(err) {
		s.Recorder.Eventf(s.VM, nil, corev1.EventTypeWarning, ReasonSourcePVCNotAvailable, actionProvision,
			"Source PVC %s not available: Target PVC %s will remain unpopulated until source is created", source.Name, dv.Name)
		return nil
	}
	if err != nil {
		return fmt.Errorf("get PersistentVolumeClaim %s: %w", key, err)
	}
	return nil
}
