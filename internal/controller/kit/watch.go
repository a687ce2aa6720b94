// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package kit

import (
	"context"
	"fmt"
	"reflect"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/source"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/controller/storage/datavolume"
	"github.com/vireo-project/vireo/internal/controller/storage/volumesnapshot"
)

// Requests lists objects and returns a request for each. It logs a failed list, unless the context has ended.
func Requests(
	ctx context.Context, reader client.Reader, list client.ObjectList, options ...client.ListOption,
) []ctrl.Request {
	var requests []ctrl.Request
	err := reader.List(ctx, list, options...)
	if err == nil {
		err = meta.EachListItem(list, func(item runtime.Object) error {
			object, err := meta.Accessor(item)
			if err == nil {
				requests = append(requests,
					ctrl.Request{NamespacedName: client.ObjectKey{Namespace: object.GetNamespace(), Name: object.GetName()}})
			}
			return err
		})
	}
	if err != nil && ctx.Err() == nil {
		ctrl.LoggerFrom(ctx).Error(err, "Cannot list the objects that a change concerns", "list", fmt.Sprintf("%T", list))
	}
	return requests
}

// OnConfig enqueues what find returns, delay after the configuration has changed. It subscribes to the configuration
// and not to the KubeVirt object, which may be in the cache before the configuration is updated.
func OnConfig(config ConfigFeed, delay time.Duration, find handler.MapFunc) source.Source {
	return source.Func(func(ctx context.Context, queue workqueue.TypedRateLimitingInterface[ctrl.Request]) error {
		config.Subscribe(func(clusterconfig.Config) {
			// The list may wait for the cache, and a subscriber must not block.
			go func() {
				for _, request := range find(ctx, nil) {
					queue.AddAfter(request, delay)
				}
			}()
		})
		return nil
	})
}

// OnSettings enqueues what find returns when the settings have changed that a kind reads from the configuration.
func OnSettings[T any](config ConfigFeed, settings func(*clusterconfig.Config) T,
	find func(context.Context) []ctrl.Request) source.Source {
	return source.Func(func(ctx context.Context, queue workqueue.TypedRateLimitingInterface[ctrl.Request]) error {
		// All objects are reconciled when the manager starts.
		before := settings(ptr.To(config.Current()))
		config.Subscribe(func(c clusterconfig.Config) {
			now := settings(&c)
			if reflect.DeepEqual(before, now) {
				return
			}
			before = now
			// The list may wait for the cache, and a subscriber must not block.
			go func() {
				for _, request := range find(ctx) {
					queue.Add(request)
				}
			}()
		})
		return nil
	})
}

// Indexes of the manager's cache that more than one reconciler uses.
const (
	// NodeIndex finds the VMIs of a node by status.nodeName.
	NodeIndex = "status.nodeName"
	// VMIIndex finds migrations by the name of their VMI. The API server selects them by this field, too.
	VMIIndex = "spec.vmiName"
	// CreatedByIndex finds objects by the label created-by. A list by labels compares those of all objects of a namespace.
	CreatedByIndex = "metadata.labels.created-by"
	// DataVolumeIndex finds the VMs and the VMIs that have DataVolumes, by the value HasDataVolumes.
	DataVolumeIndex = "has-data-volumes"
	// HasDataVolumes is the only value of DataVolumeIndex.
	HasDataVolumes = "true"
)

// Index is an index of the manager's cache.
type Index struct {
	kind   client.Object
	field  string
	values client.IndexerFunc
}

// IndexBy returns an index of the objects of a type by the values that a function returns for each.
func IndexBy[T client.Object](kind T, field string, values func(T) []string) Index {
	return Index{kind: kind, field: field, values: func(o client.Object) []string {
		object, ok := o.(T)
		if !ok {
			return nil
		}
		return values(object)
	}}
}

// CreatedBy returns the value of CreatedByIndex.
func CreatedBy(object client.Object) []string {
	if creator := object.GetLabels()[v1.CreatedByLabel]; creator != "" {
		return []string{creator}
	}
	return nil
}

// AddIndexes adds indexes to the manager's cache.
func AddIndexes(indexer client.FieldIndexer, indexes ...Index) error {
	for _, index := range indexes {
		if err := indexer.IndexField(context.Background(), index.kind, index.field, index.values); err != nil {
			return fmt.Errorf("index %T by %s: %w", index.kind, index.field, err)
		}
	}
	return nil
}

// Objects passes the events of those objects that a function selects.
func Objects[T client.Object](selects func(T) bool) predicate.Predicate {
	return predicate.NewPredicateFuncs(func(o client.Object) bool {
		object, ok := o.(T)
		return ok && selects(object)
	})
}

// Updates passes those updates that a function selects, every creation and every deletion.
func Updates[T client.Object](selects func(before, after T) bool) predicate.Funcs {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok := e.ObjectOld.(T)
		after, is := e.ObjectNew.(T)
		return ok && is && selects(before, after)
	}}
}

// ExceptCreations passes what other predicates do, but no creation. All objects are created when virt-controller
// starts.
func ExceptCreations(funcs predicate.Funcs) predicate.Funcs {
	funcs.CreateFunc = func(event.CreateEvent) bool { return false }
	return funcs
}

// ExceptDeletions passes what other predicates do, but no deletion.
func ExceptDeletions(funcs predicate.Funcs) predicate.Funcs {
	funcs.DeleteFunc = func(event.DeleteEvent) bool { return false }
	return funcs
}

// CreationsAndDeletions passes no updates.
var CreationsAndDeletions = Updates(func(client.Object, client.Object) bool { return false })

// Deletions passes nothing else.
var Deletions = ExceptCreations(CreationsAndDeletions)

// ConfigSource provides the cluster's current configuration. clusterconfig.Store is one.
type ConfigSource interface {
	Current() clusterconfig.Config
}

// ConfigFeed is a ConfigSource that reports changes. clusterconfig.Store is one.
type ConfigFeed interface {
	ConfigSource
	// Subscribe calls f at once and after each change, one call at a time.
	Subscribe(f func(clusterconfig.Config))
}

// DataVolumes reads the DataVolumes of the importer and enqueues the objects that use them. datavolume.Store is one.
type DataVolumes interface {
	datavolume.Reader
	// Source enqueues what users returns for a change.
	Source(users func(context.Context, datavolume.Change) []ctrl.Request) *datavolume.Source
}

// VolumeSnapshots reads VolumeSnapshots and their classes, and enqueues the objects that depend on them.
// volumesnapshot.Store is one.
type VolumeSnapshots interface {
	volumesnapshot.Reader
	// OnSnapshot enqueues what users returns when a VolumeSnapshot changes.
	OnSnapshot(users func(context.Context, client.ObjectKey) []ctrl.Request) source.Source
	// OnClass enqueues what all returns when the choice of classes may change.
	OnClass(all func(context.Context) []ctrl.Request) source.Source
}
