// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package commoninstancetypes keeps the common instance types and preferences of internal/decide/instancetype/common in
// the cluster, and removes them when they are no longer wanted. It never changes an object of another client.
package commoninstancetypes

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/vireo-project/vireo/api/instancetype/v1beta1"
	"github.com/vireo-project/vireo/internal/controller/install/kubevirt/manifests"
	"github.com/vireo-project/vireo/internal/controller/kit"
)

// maxWrites is how many objects one call changes, so that the KubeVirt object's status is not outdated for long. The
// events of these objects trigger the call for the next ones.
const maxWrites = 50

// Watch triggers reconciliations when a common object, or one that has its name, changes.
func Watch(controlled *builder.Builder, enqueue handler.EventHandler) {
	concerns := builder.WithPredicates(predicate.NewPredicateFuncs(func(o client.Object) bool {
		return names()[o.GetName()] || isMarked(o)
	}))
	controlled.Watches(&v1beta1.VirtualMachineClusterInstancetype{}, enqueue, concerns)
	controlled.Watches(&v1beta1.VirtualMachineClusterPreference{}, enqueue, concerns)
}

// Installer applies and removes the common objects.
type Installer struct {
	// Client reads from the cache, and writes.
	Client client.Client
	// APIReader reads from the API server who has applied an object: the cache does not have it.
	APIReader client.Reader
}

// run is one call of an Installer.
type run struct {
	Installer
	writes int
	errs   []error
	// live are the objects that can be changed. It is nil until it is read.
	live map[string]*metav1.PartialObjectMetadata
}

// Apply creates and changes the common objects that differ from what they should be, and deletes those of earlier
// releases. It returns the objects with the names of common ones that belong to other clients, as kind and name.
func (i Installer) Apply(ctx context.Context) (foreign []string, err error) {
	objects, err := wanted()
	if err != nil {
		return nil, err
	}
	found, err := i.cached(ctx)
	if err != nil {
		return nil, err
	}
	r := &run{Installer: i}
	for _, object := range objects {
		key := keyOf(object)
		theirs, err := r.applyOne(ctx, object, found[key])
		if err != nil {
			return nil, err
		}
		if theirs {
			foreign = append(foreign, key)
		}
		delete(found, key)
	}
	if _, err := r.remove(ctx, found); err != nil {
		return foreign, err
	}
	return foreign, r.err()
}

// Remove deletes the common objects, and returns how many still exist.
func (i Installer) Remove(ctx context.Context) (remaining int, err error) {
	found, err := i.cached(ctx)
	if err != nil {
		return 0, err
	}
	r := &run{Installer: i}
	if remaining, err = r.remove(ctx, found); err != nil {
		return 0, err
	}
	return remaining, r.err()
}

// cached returns all objects of the two kinds, which must not be changed.
func (i Installer) cached(ctx context.Context) (map[string]client.Object, error) {
	types, preferences := &v1beta1.VirtualMachineClusterInstancetypeList{}, &v1beta1.VirtualMachineClusterPreferenceList{}
	for _, list := range []client.ObjectList{types, preferences} {
		if err := i.Client.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("cannot list %T: %w", list, err)
		}
	}
	found := make(map[string]client.Object, len(types.Items)+len(preferences.Items))
	for j := range types.Items {
		found[instancetypeKind.Kind+" "+types.Items[j].Name] = &types.Items[j]
	}
	for j := range preferences.Items {
		found[preferenceKind.Kind+" "+preferences.Items[j].Name] = &preferences.Items[j]
	}
	return found, nil
}

// applyOne applies an object if the cached one differs or does not exist. It reports whether the object belongs to
// another client.
func (r *run) applyOne(
	ctx context.Context, object *unstructured.Unstructured, cached client.Object,
) (foreign bool, err error) {
	version := neverUsed
	if cached != nil {
		if !isMarked(cached) {
			return true, nil
		}
		if same, err := manifests.UpToDate(object, cached); err != nil || same {
			return false, err
		}
		owned, err := r.owned(ctx)
		if err != nil {
			return false, err
		}
		live := owned[keyOf(object)]
		if live == nil {
			return true, nil
		}
		version = live.ResourceVersion
	}
	if r.writes >= maxWrites {
		return false, nil
	}
	applied := object.DeepCopy()
	applied.SetResourceVersion(version)
	err = r.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(applied),
		client.FieldOwner(manifests.FieldManager), client.ForceOwnership)
	switch {
	case apierrors.IsConflict(err):
		// The cache is behind: the object's event triggers the next call.
	case err != nil:
		return false, r.note(fmt.Errorf("cannot apply %s: %w", keyOf(object), err))
	default:
		r.writes++
		log.FromContext(ctx).V(1).Info("Applied", "kind", object.GetKind(), "object", object.GetName())
	}
	return false, nil
}

// neverUsed is a resource version that no object has: etcd's first revision is that of the empty store. As a
// precondition it makes the API server create an object, and refuse to change one that exists.
const neverUsed = "1"

// remove deletes those of some objects that Vireo owns, and returns how many of these the cache contains.
func (r *run) remove(ctx context.Context, cached map[string]client.Object) (remaining int, err error) {
	for _, key := range slices.Sorted(maps.Keys(cached)) {
		if !isMarked(cached[key]) {
			continue
		}
		owned, err := r.owned(ctx)
		if err != nil {
			return 0, err
		}
		live := owned[key]
		if live == nil {
			continue
		}
		remaining++
		if r.writes >= maxWrites {
			continue
		}
		err = r.Client.Delete(ctx, live, kit.Unchanged(live))
		switch {
		case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		case err != nil:
			if err := r.note(fmt.Errorf("cannot delete %s: %w", key, err)); err != nil {
				return 0, err
			}
		default:
			r.writes++
			log.FromContext(ctx).V(1).Info("Deleted", "kind", live.Kind, "object", live.Name)
		}
	}
	return remaining, nil
}

// owned returns the objects that may be changed and deleted, as the API server has them.
func (r *run) owned(ctx context.Context) (map[string]*metav1.PartialObjectMetadata, error) {
	if r.live != nil {
		return r.live, nil
	}
	owned := map[string]*metav1.PartialObjectMetadata{}
	for _, kind := range kinds {
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
		if err := r.APIReader.List(ctx, list, client.MatchingLabels(marks)); err != nil {
			return nil, fmt.Errorf("cannot list objects of kind %s: %w", kind.Kind, err)
		}
		for j := range list.Items {
			item := &list.Items[j]
			item.SetGroupVersionKind(kind)
			if isOwned(item) {
				owned[keyOf(item)] = item
			}
		}
	}
	r.live = owned
	return owned, nil
}

// note keeps the error of an object that the API server refuses, so that the others follow. It returns any other error,
// as that of a webhook that cannot be called: each further request would fail, too.
func (r *run) note(err error) error {
	if apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsBadRequest(err) {
		r.errs = append(r.errs, err)
		return nil
	}
	return err
}

// err returns the first error of a request, and how many more there were.
func (r *run) err() error {
	switch len(r.errs) {
	case 0:
		return nil
	case 1:
		return r.errs[0]
	}
	return errors.Join(fmt.Errorf("%d requests failed, first", len(r.errs)), r.errs[0])
}
