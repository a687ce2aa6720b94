// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package controllersuite

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/controller/storage/claimusers"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// Indexes are indexes of the manager's cache by which reconcilers list objects. The API server does not have them.
type Indexes map[string]client.IndexerFunc

// indexes are those that several kinds use, and those of the suite.
var indexes = Indexes{
	claimusers.Index: IndexOf(func(pod *corev1.Pod) []string {
		if app := pod.Labels[v1.AppLabel]; app != launcherpod.AppLabelValue && app != launcherpod.AttachmentLabelValue {
			return nil // The cache has launcher and attachment Pods only.
		}
		return claimusers.ClaimsOf(pod)
	}),
	kit.CreatedByIndex: kit.CreatedBy,
}

// IndexOf returns an index of one kind.
func IndexOf[T client.Object](values func(T) []string) client.IndexerFunc {
	return func(o client.Object) []string {
		object, ok := o.(T)
		if !ok {
			return nil
		}
		return values(object)
	}
}

// listIndexed lists objects as the manager's cache does.
func listIndexed(ctx context.Context, c client.Reader, list client.ObjectList, opts ...client.ListOption) error {
	requested := (&client.ListOptions{}).ApplyOptions(opts)
	if requested.FieldSelector == nil {
		return c.List(ctx, list, opts...)
	}
	for field, values := range indexes {
		want, selects := requested.FieldSelector.RequiresExactMatch(field)
		if !selects {
			continue
		}
		requested.FieldSelector = nil
		if err := c.List(ctx, list, requested); err != nil {
			return err
		}
		all, err := meta.ExtractList(list)
		if err != nil {
			return err
		}
		return meta.SetList(list, slices.DeleteFunc(all, func(o runtime.Object) bool {
			object, ok := o.(client.Object)
			return !ok || !slices.Contains(values(object), want)
		}))
	}
	return c.List(ctx, list, opts...)
}

// CountLists returns a reader of the API server that counts the lists of one kind.
func CountLists[L client.ObjectList]() (client.Reader, *int) {
	count := 0
	return interceptor.NewClient(AsController, interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if _, is := list.(L); is {
				count++
			}
			return c.List(ctx, list, opts...)
		},
	}), &count
}
