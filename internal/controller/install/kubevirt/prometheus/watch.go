// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package prometheus

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// pause is the least time between two reconciliations: any tenant can have an object of these names, and change it at
// any rate.
const pause = time.Second

var definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1",
	Resource: "customresourcedefinitions"}

// Source enqueues the requests of all when one of the objects changes, or when the cluster gets or loses one of their
// kinds. A kind is only watched while its CustomResourceDefinition exists, so that no informer retries a kind that is
// not served.
func (i *Installer) Source(client metadata.Interface, all func(context.Context) []reconcile.Request) source.Source {
	return source.Func(func(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		changed := func() {
			for _, request := range all(ctx) {
				queue.AddAfter(request, pause)
			}
		}
		for _, k := range kinds {
			if k.definition() == "" {
				if err := i.watch(ctx, client, k, changed); err != nil {
					return err
				}
				continue
			}
			if err := i.follow(ctx, client, k, changed); err != nil {
				return err
			}
		}
		return nil
	})
}

// watched are the informers of the objects, by kind, while their kind exists, and those of the
// CustomResourceDefinitions by name.
type watched struct {
	mu        sync.Mutex
	informers map[string]toolscache.SharedIndexInformer
}

// set sets an informer, or removes it if it is nil.
func (w *watched) set(name string, informer toolscache.SharedIndexInformer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.informers == nil {
		w.informers = map[string]toolscache.SharedIndexInformer{}
	}
	w.informers[name] = informer
}

// versions identifies the objects and their versions. It is empty until all are known. present is false if it is known
// that the cluster has no kind of the Prometheus operator.
func (w *watched) versions() (versions string, present bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := make([]string, 0, len(kinds))
	for _, k := range kinds {
		optional, definition, objects := k.definition() != "", w.informers[k.definition()], w.informers[k.kind]
		switch {
		case optional && (definition == nil || !definition.HasSynced()):
			return "", true
		case optional && objects == nil:
		case objects == nil || !objects.HasSynced():
			return "", true
		default:
			present = present || optional
			for _, o := range objects.GetStore().List() {
				if o, ok := o.(metav1.Object); ok {
					all = append(all, strings.Join([]string{k.kind, o.GetNamespace(), string(o.GetUID()), o.GetResourceVersion()},
						"/"))
				}
			}
			all = append(all, k.kind)
		}
	}
	slices.Sort(all)
	return fmt.Sprint(all), present
}

// follow watches the object of a kind while its CustomResourceDefinition exists.
func (i *Installer) follow(ctx context.Context, client metadata.Interface, k kind, changed func()) error {
	// The handlers of one informer are called one at a time.
	stop := func() {}
	informer := newInformer(client, definitions, metav1.NamespaceAll, k.definition())
	if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(any) {
			stop()
			var watching context.Context
			watching, stop = context.WithCancel(ctx)
			if err := i.watch(watching, client, k, changed); err != nil {
				// Handlers can only be refused by an informer that has stopped.
				stop()
			}
		},
		DeleteFunc: func(any) {
			stop()
			i.watched.set(k.kind, nil)
			changed()
		},
	}); err != nil {
		return fmt.Errorf("watch CustomResourceDefinition %s: %w", k.definition(), err)
	}
	i.watched.set(k.definition(), informer)
	go informer.Run(ctx.Done())
	return nil
}

// watch calls a function when the object of a kind changes, and when the kind is served.
func (i *Installer) watch(ctx context.Context, client metadata.Interface, k kind, changed func()) error {
	informer := newInformer(client, k.GroupVersionResource, i.of(k), k.name)
	if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { changed() }, UpdateFunc: func(any, any) { changed() }, DeleteFunc: func(any) { changed() },
	}); err != nil {
		return fmt.Errorf("watch %s: %w", k.kind, err)
	}
	i.watched.set(k.kind, informer)
	go informer.Run(ctx.Done())
	go func() {
		if toolscache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
			changed()
		}
	}()
	return nil
}

// newInformer returns an informer of one object's metadata.
func newInformer(
	client metadata.Interface, of schema.GroupVersionResource, namespace, name string,
) toolscache.SharedIndexInformer {
	return metadatainformer.NewFilteredMetadataInformer(client, of, namespace, 0, toolscache.Indexers{},
		func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
		}).Informer()
}
