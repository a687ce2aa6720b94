// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package controller

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/vireo-project/vireo/internal/clusterconfig"
)

// concerned lists the objects that a change of something else concerns, to reconcile each of them. Of a list that fails only the
// log tells, unless the process ends.
func concerned(ctx context.Context, reader client.Reader, list client.ObjectList, options ...client.ListOption) []ctrl.Request {
	var requests []ctrl.Request
	err := reader.List(ctx, list, options...)
	if err == nil {
		err = meta.EachListItem(list, func(item runtime.Object) error {
			object, err := meta.Accessor(item)
			if err == nil {
				requests = append(requests, ctrl.Request{NamespacedName: client.ObjectKey{Namespace: object.GetNamespace(), Name: object.GetName()}})
			}
			return err
		})
	}
	if err != nil && ctx.Err() == nil {
		ctrl.LoggerFrom(ctx).Error(err, "Cannot list the objects that a change concerns", "list", fmt.Sprintf("%T", list))
	}
	return requests
}

// configSource has objects reconciled, a while after the configuration has changed. It listens to the configuration and not to the
// KubeVirt object that it comes from, which may be known here before the configuration is.
func configSource(config ConfigFeed, delay time.Duration, find handler.MapFunc) source.Source {
	return source.Func(func(ctx context.Context, queue workqueue.TypedRateLimitingInterface[ctrl.Request]) error {
		config.Subscribe(func(clusterconfig.Config) {
			// The list may wait for the cache, which the caller must not.
			go func() {
				for _, request := range find(ctx, nil) {
					queue.AddAfter(request, delay)
				}
			}()
		})
		return nil
	})
}

// cacheIndex is an index of the manager's cache.
type cacheIndex struct {
	kind   client.Object
	field  string
	values client.IndexerFunc
}

// indexBy is the index of the objects of a type by the values of each.
func indexBy[T client.Object](kind T, field string, values func(T) []string) cacheIndex {
	return cacheIndex{kind: kind, field: field, values: func(o client.Object) []string {
		object, ok := o.(T)
		if !ok {
			return nil
		}
		return values(object)
	}}
}

// addIndexes makes indexes.
func addIndexes(indexer client.FieldIndexer, indexes ...cacheIndex) error {
	for _, index := range indexes {
		if err := indexer.IndexField(context.Background(), index.kind, index.field, index.values); err != nil {
			return fmt.Errorf("index %T by %s: %w", index.kind, index.field, err)
		}
	}
	return nil
}
