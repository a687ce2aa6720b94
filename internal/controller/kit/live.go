// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package kit

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// PageSize is how many objects of a namespace are read from the API server at a time. A tenant decides how many there
// are, and how large: the metadata of an object may have MetadataBytes, most of it annotations, and a whole one
// ObjectBytes, of which a page has fewer.
const (
	PageSize      = 40
	MetadataBytes = 300 << 10
	WholePageSize = 20
	ObjectBytes   = 3 << 19
)

// EachMetadata calls do for the metadata of each object of a kind in a namespace that options select, which it lists
// from the API server page by page. Only one page is in memory at a time, unless do keeps more.
func EachMetadata(
	ctx context.Context, live client.Reader, kind schema.GroupVersionKind, namespace string,
	do func(*metav1.PartialObjectMetadata), options ...client.ListOption,
) error {
	page := &metav1.PartialObjectMetadataList{}
	page.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
	err := eachPage(ctx, live, PageSize, page, func(page *metav1.PartialObjectMetadataList) {
		for i := range page.Items {
			do(&page.Items[i])
		}
	}, append(options, client.InNamespace(namespace))...)
	if err != nil {
		return fmt.Errorf("list the metadata of %s objects of namespace %s: %w", kind.Kind, namespace, err)
	}
	return nil
}

// EachPage calls do for each page of the objects that options select, as they are on the API server. Only one page is
// in memory at a time, unless do keeps more. Use EachMetadata if the metadata suffices.
func EachPage[L client.ObjectList](ctx context.Context, live client.Reader, empty L, do func(L),
	options ...client.ListOption) error {
	return eachPage(ctx, live, WholePageSize, empty, do, options...)
}

func eachPage[L client.ObjectList](
	ctx context.Context, live client.Reader, size int64, empty L, do func(L), options ...client.ListOption,
) error {
	for next := ""; ; {
		page, _ := empty.DeepCopyObject().(L)
		if err := live.List(ctx, page,
			append(slices.Clone(options), client.Limit(size), client.Continue(next))...); err != nil {
			return err
		}
		do(page)
		if next = page.GetContinue(); next == "" {
			return nil
		}
	}
}

// Claims returns the claims of a namespace that the cache has, by name. They belong to the cache and must not be
// changed.
func Claims(
	ctx context.Context, cache client.Reader, namespace string,
) (map[string]*corev1.PersistentVolumeClaim, error) {
	list := &corev1.PersistentVolumeClaimList{}
	if err := cache.List(ctx, list, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list PersistentVolumeClaims of namespace %s: %w", namespace, err)
	}
	claims := make(map[string]*corev1.PersistentVolumeClaim, len(list.Items))
	for i := range list.Items {
		claims[list.Items[i].Name] = &list.Items[i]
	}
	return claims, nil
}

// Current returns those objects of a namespace that keep selects by their metadata, as they are on the API server. It
// lists metadata only, and reads those objects that the cache has in another version.
func Current[T any, P interface {
	*T
	client.Object
}](
	ctx context.Context, live client.Reader, kind schema.GroupVersionKind, namespace string, cached []T,
	keep func(metav1.Object) bool,
) ([]T, error) {
	versions := make(map[string]int, len(cached))
	for i := range cached {
		versions[string(P(&cached[i]).GetUID())+P(&cached[i]).GetResourceVersion()] = i
	}
	var current []T
	var changed []client.ObjectKey
	err := EachMetadata(ctx, live, kind, namespace, func(m *metav1.PartialObjectMetadata) {
		if !keep(m) {
			return
		}
		if i, known := versions[string(m.UID)+m.ResourceVersion]; known {
			current = append(current, cached[i])
			return
		}
		changed = append(changed, client.ObjectKeyFromObject(m))
	})
	if err != nil {
		return nil, err
	}
	for _, key := range changed {
		object, err := Read(ctx, key, P(new(T)), live)
		if err != nil {
			return nil, err
		}
		if object != nil && keep(object) {
			current = append(current, *object)
		}
	}
	return current, nil
}
