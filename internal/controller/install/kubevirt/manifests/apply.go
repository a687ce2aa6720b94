// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package manifests

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/log"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// FieldManager is the field manager of all installed objects.
const FieldManager = "vireo-operator"

// Installer applies, prunes and removes the installed objects. It reads from the client's cache.
type Installer struct {
	Client    client.Client
	Namespace string
}

// kinds returns the kinds of objects that are installed, in the order of their removal: first those that route to
// virt-api.
func kinds() []client.ObjectList {
	apiServices := &unstructured.UnstructuredList{}
	apiServices.SetGroupVersionKind(APIServiceKind.GroupVersion().WithKind(APIServiceKind.Kind + "List"))
	return []client.ObjectList{
		apiServices, &appsv1.DaemonSetList{}, &appsv1.DeploymentList{}, &policyv1.PodDisruptionBudgetList{},
		&corev1.ServiceList{}, &corev1.ConfigMapList{},
	}
}

// Apply applies those objects that differ from the cluster's, and returns the generation of each object.
func (i Installer) Apply(ctx context.Context, objects ...*unstructured.Unstructured) ([]v1.GenerationStatus, error) {
	records := make([]v1.GenerationStatus, 0, len(objects))
	for _, desired := range objects {
		live, matches, err := i.Find(ctx, desired)
		if err != nil {
			return nil, err
		}
		if !matches {
			if live, err = i.apply(ctx, desired); err != nil {
				return nil, fmt.Errorf("cannot install %s %q: %w", desired.GetKind(), desired.GetName(), err)
			}
		}
		record, err := i.Record(desired, live)
		if err != nil {
			return nil, err
		}
		records = append(records, record)
	}
	return records, nil
}

// Record returns the generation of an installed object.
func (i Installer) Record(desired *unstructured.Unstructured, live client.Object) (v1.GenerationStatus, error) {
	gvk := desired.GroupVersionKind()
	mapping, err := i.Client.RESTMapper().RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return v1.GenerationStatus{}, fmt.Errorf("cannot install %s: %w", gvk.Kind, err)
	}
	return v1.GenerationStatus{
		Group: gvk.Group, Resource: mapping.Resource.Resource, Namespace: live.GetNamespace(), Name: live.GetName(),
		LastGeneration: live.GetGeneration(), Hash: live.GetAnnotations()[HashAnnotation],
	}, nil
}

// Find returns the object of the cluster, nil if there is none, and whether it is as desired.
func (i Installer) Find(
	ctx context.Context, desired *unstructured.Unstructured,
) (live client.Object, matches bool, err error) {
	live, err = i.typed(desired)
	if err != nil {
		return nil, false, err
	}
	err = i.Client.Get(ctx, client.ObjectKeyFromObject(desired), live)
	if apierrors.IsNotFound(err) {
		return nil, false, nil
	}
	if err == nil {
		matches, err = UpToDate(desired, live)
	}
	if err != nil {
		return nil, false, fmt.Errorf("cannot read %s %q: %w", desired.GetKind(), desired.GetName(), err)
	}
	return live, matches, nil
}

func (i Installer) apply(ctx context.Context, desired *unstructured.Unstructured) (client.Object, error) {
	applied := desired.DeepCopy()
	if err := i.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(applied), client.FieldOwner(FieldManager),
		client.ForceOwnership); err != nil {
		return nil, err
	}
	log.FromContext(ctx).Info("Applied", "kind", desired.GetKind(), "object", desired.GetName())
	return applied, nil
}

// typed returns an empty object of the kind, so that reads share the manager's typed cache. A kind without Go types is
// read from the API server.
func (i Installer) typed(desired *unstructured.Unstructured) (client.Object, error) {
	if clusterScoped(desired) {
		live := &unstructured.Unstructured{}
		live.SetGroupVersionKind(desired.GroupVersionKind())
		return live, nil
	}
	object, err := i.Client.Scheme().New(desired.GroupVersionKind())
	if err != nil {
		return nil, fmt.Errorf("kind is not in the scheme: %w", err)
	}
	live, ok := object.(client.Object)
	if !ok {
		return nil, fmt.Errorf("kind %s is not an object", desired.GetKind())
	}
	return live, nil
}

// Matches reports whether an object is as desired, whatever number of a DaemonSet's Pods may be replaced at a time.
func Matches(desired *unstructured.Unstructured, live client.Object) (bool, error) {
	if ds, ok := live.(*appsv1.DaemonSet); ok {
		if rolling := ds.Spec.UpdateStrategy.RollingUpdate; rolling != nil && rolling.MaxUnavailable != nil {
			desired = desired.DeepCopy()
			if err := SetMaxUnavailable(desired, rolling.MaxUnavailable.IntValue()); err != nil {
				return false, err
			}
		}
	}
	return UpToDate(desired, live)
}

// UpToDate reports whether the live object was applied from the same rendering, which Stamp has marked, and still has
// all of it.
func UpToDate(desired *unstructured.Unstructured, live client.Object) (bool, error) {
	if live.GetAnnotations()[HashAnnotation] != desired.GetAnnotations()[HashAnnotation] {
		return false, nil
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(live)
	if err != nil {
		return false, fmt.Errorf("reading its fields: %w", err)
	}
	want := desired.DeepCopy().Object
	// A typed object has no kind after a read.
	delete(want, "apiVersion")
	delete(want, "kind")
	return contains(content, want), nil
}

// Prune deletes the installed objects that are neither in keep nor could be patched.
func (i Installer) Prune(ctx context.Context, keep []*unstructured.Unstructured, refused error) error {
	wanted := map[string]bool{}
	for _, o := range keep {
		wanted[o.GetKind()+"/"+o.GetName()] = true
	}
	for _, p := range PatchErrors(refused) {
		wanted[p.Kind+"/"+p.Name] = true
	}
	installed, err := i.Installed(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, o := range installed {
		if wanted[o.GetObjectKind().GroupVersionKind().Kind+"/"+o.GetName()] || o.GetDeletionTimestamp() != nil {
			continue
		}
		if err := i.remove(ctx, o); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Remove deletes all installed objects and returns those that still exist, as kind and name.
func (i Installer) Remove(ctx context.Context) ([]string, error) {
	installed, err := i.Installed(ctx)
	if err != nil {
		return nil, err
	}
	var remaining []string
	for _, o := range installed {
		remaining = append(remaining, o.GetObjectKind().GroupVersionKind().Kind+" "+o.GetName())
		if o.GetDeletionTimestamp() != nil {
			continue
		}
		if err := i.remove(ctx, o); err != nil {
			return remaining, err
		}
	}
	return remaining, nil
}

func (i Installer) remove(ctx context.Context, o client.Object) error {
	kind := o.GetObjectKind().GroupVersionKind().Kind
	// Foreground: the object stays until its Pods are gone, and so does the KubeVirt object.
	err := i.Client.Delete(ctx, o, client.PropagationPolicy("Foreground"), client.Preconditions{UID: uidOf(o)})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("cannot delete %s %q: %w", kind, o.GetName(), err)
	}
	log.FromContext(ctx).Info("Deleted", "kind", kind, "object", o.GetName())
	return nil
}

// Installed lists the installed objects.
func (i Installer) Installed(ctx context.Context) ([]client.Object, error) {
	var out []client.Object
	for _, list := range kinds() {
		options := []client.ListOption{client.MatchingLabels{ManagedByLabel: ManagedBy}}
		if _, cluster := list.(*unstructured.UnstructuredList); !cluster {
			options = append(options, client.InNamespace(i.Namespace))
		}
		err := i.Client.List(ctx, list, options...)
		if err != nil {
			return nil, fmt.Errorf("cannot list what is installed: %w", err)
		}
		items, err := itemsOf(list, i.Client.Scheme())
		if err != nil {
			return nil, err
		}
		out = append(out, items...)
	}
	return out, nil
}

// contains reports whether live has every field of want with its value. Fields that the server added are ignored,
// and so is a nil or empty value of want that live lacks. A list must have the same length.
func contains(live, want any) bool {
	switch w := want.(type) {
	case map[string]any:
		l, ok := live.(map[string]any)
		if !ok {
			return len(w) == 0 && live == nil
		}
		for k, v := range w {
			if !contains(l[k], v) {
				return false
			}
		}
		return true
	case []any:
		l, ok := live.([]any)
		if !ok || len(l) != len(w) {
			return len(w) == 0 && live == nil
		}
		for i := range w {
			if !contains(l[i], w[i]) {
				return false
			}
		}
		return true
	case nil:
		return true
	}
	if live == nil {
		return reflect.ValueOf(want).IsZero()
	}
	return reflect.DeepEqual(live, want)
}

// itemsOf returns copies of the objects of a list, with their kinds set.
func itemsOf(list client.ObjectList, scheme *runtime.Scheme) ([]client.Object, error) {
	var out []client.Object
	err := meta.EachListItem(list, func(item runtime.Object) error {
		// A copy, because the kind is set and the list may belong to a cache.
		o, ok := item.DeepCopyObject().(client.Object)
		if !ok {
			return fmt.Errorf("%T is not an object", item)
		}
		gvk, err := apiutil.GVKForObject(o, scheme)
		if err != nil {
			return err
		}
		o.GetObjectKind().SetGroupVersionKind(gvk)
		out = append(out, o)
		return nil
	})
	return out, err
}

func uidOf(o client.Object) *types.UID {
	uid := o.GetUID()
	return &uid
}
