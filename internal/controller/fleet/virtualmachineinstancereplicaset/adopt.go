// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstancereplicaset

import (
	"context"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/optimistic"
)

// adoptAndRelease finds the VMIs that belong to the set. It adopts those that match the selector and have no
// controller, and removes the owner reference from those that no longer match.
func adoptAndRelease(ctx context.Context, s *Scope) error {
	var errs []error
	var orphans []*v1.VirtualMachineInstance
	for i := range s.Neighbors {
		vmi := &s.Neighbors[i]
		owner, matches := metav1.GetControllerOf(vmi), s.Selector.Matches(labels.Set(vmi.Labels))
		switch {
		case owner == nil && matches && vmi.DeletionTimestamp == nil:
			orphans = append(orphans, vmi)
		case owner == nil || owner.UID != s.Set.UID:
		case matches:
			s.Instances = append(s.Instances, vmi)
		case s.Set.DeletionTimestamp == nil: // the garbage collector handles the VMIs of a deleted set
			errs = append(errs, removeOwner(ctx, s, vmi))
		}
	}
	errs = append(errs, adopt(ctx, s, orphans))
	return errors.Join(errs...)
}

// adopt makes the set the controller of VMIs without one. A set that is being deleted adopts none, because with the
// deletion option "orphan" the garbage collector has just removed their owner references. The cache may not show the
// deletion yet, so the set is read from the API server. Source: https://github.com/kubernetes/kubernetes/issues/42639
func adopt(ctx context.Context, s *Scope, orphans []*v1.VirtualMachineInstance) error {
	if len(orphans) == 0 || s.Set.DeletionTimestamp != nil {
		return nil
	}
	fresh := &v1.VirtualMachineInstanceReplicaSet{}
	err := s.APIReader.Get(ctx, client.ObjectKeyFromObject(s.Set), fresh)
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("get VirtualMachineInstanceReplicaSet %s: %w", client.ObjectKeyFromObject(s.Set), err)
	case fresh.UID != s.Set.UID || fresh.DeletionTimestamp != nil:
		return nil
	}
	var errs []error
	for _, vmi := range orphans {
		adopted, err := patch(ctx, s, vmi, func(vmi *v1.VirtualMachineInstance) {
			vmi.OwnerReferences = append(vmi.OwnerReferences,
				*metav1.NewControllerRef(s.Set, v1.VirtualMachineInstanceReplicaSetGroupVersionKind))
		})
		if adopted != nil {
			s.Instances = append(s.Instances, adopted)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// removeOwner removes the set's owner reference from a VMI whose labels were changed so that the selector no longer
// matches.
func removeOwner(ctx context.Context, s *Scope, vmi *v1.VirtualMachineInstance) error {
	_, err := patch(ctx, s, vmi, func(vmi *v1.VirtualMachineInstance) {
		vmi.OwnerReferences = slices.DeleteFunc(vmi.OwnerReferences, func(o metav1.OwnerReference) bool {
			return o.UID == s.Set.UID
		})
	})
	return err
}

// patch changes the metadata of a VMI if it is still at the version that was read. It returns nil if the VMI no longer
// exists.
func patch(ctx context.Context, s *Scope, vmi *v1.VirtualMachineInstance, change func(*v1.VirtualMachineInstance),
) (*v1.VirtualMachineInstance, error) {
	changed, err := optimistic.Patch(ctx, s.Client, vmi, change)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		err = fmt.Errorf("patch owners of VirtualMachineInstance %s: %w", client.ObjectKeyFromObject(vmi), err)
		s.fail(ReasonFailedAdoption, actionAdopt, "Error adopting or releasing a virtual machine instance: %v", err)
		return nil, err
	}
	return changed, nil
}
