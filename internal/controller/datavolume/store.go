// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package datavolume

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/vireo-project/vireo/api/cdi"
)

// syncTimeout is how long the first list of DataVolumes may delay the start of the controllers that use them. After it they run as
// if there were none, until the list succeeds.
const syncTimeout = 10 * time.Second

var crdKind = schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"}

// Store caches the cluster's DataVolumes. It watches them only while their CustomResourceDefinition exists, so that no informer
// retries a kind that is not served. Make one with NewStore and add it to the manager.
type Store struct {
	config *rest.Config
	client *http.Client
	scheme *runtime.Scheme

	// current is nil while the cluster has no DataVolumes.
	current    atomic.Pointer[clientReader]
	publishing sync.Mutex
	// settled is closed once the Store has determined whether the cluster has DataVolumes, or after syncTimeout.
	settled chan struct{}
	settle  sync.Once

	mu          sync.Mutex
	subscribers map[int]func(Change)
	next        int
}

// Change is the key of a DataVolume that was created, changed or deleted. It is empty if the CustomResourceDefinition of DataVolumes
// was installed or removed.
type Change client.ObjectKey

// NewStore makes a Store. The scheme needs the kinds of package cdi.
func NewStore(config *rest.Config, httpClient *http.Client, scheme *runtime.Scheme) *Store {
	return &Store{
		config: config, client: httpClient, scheme: scheme,
		settled: make(chan struct{}), subscribers: map[int]func(Change){},
	}
}

// Get implements Reader.
func (s *Store) Get(ctx context.Context, key client.ObjectKey) (*cdi.DataVolume, error) {
	current := s.current.Load()
	if current == nil {
		return nil, ErrNotInstalled
	}
	return current.Get(ctx, key)
}

// NeedLeaderElection is false, so that a newly elected replica has its cache already.
func (s *Store) NeedLeaderElection() bool { return false }

// Start follows the CustomResourceDefinition until the context ends.
func (s *Store) Start(ctx context.Context) error {
	kind := &metav1.PartialObjectMetadata{}
	kind.SetGroupVersionKind(crdKind)
	definitions, err := s.newCache(map[client.Object]cache.ByObject{
		kind: {Field: fields.OneTermEqualSelector(metav1.ObjectNameField, CRD)},
	})
	if err != nil {
		return err
	}
	informer, err := definitions.GetInformer(ctx, kind, cache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("watch CustomResourceDefinition %s: %w", CRD, err)
	}
	// One pending change is enough: follow reads the CustomResourceDefinition.
	changes := make(chan struct{}, 1)
	trigger := func() {
		select {
		case changes <- struct{}{}:
		default:
		}
	}
	if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { trigger() }, DeleteFunc: func(any) { trigger() },
	}); err != nil {
		return fmt.Errorf("watch CustomResourceDefinition %s: %w", CRD, err)
	}
	done := make(chan error, 1)
	go func() { done <- definitions.Start(ctx) }()
	if toolscache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		s.follow(ctx, definitions, kind, changes)
	}
	return <-done
}

// follow watches DataVolumes while their CustomResourceDefinition exists.
func (s *Store) follow(ctx context.Context, definitions cache.Cache, kind client.Object, changes <-chan struct{}) {
	defer s.settle.Do(func() { close(s.settled) })
	var stop context.CancelFunc
	var uid string
	for {
		err := definitions.Get(ctx, client.ObjectKey{Name: CRD}, kind)
		there := err == nil && kind.GetDeletionTimestamp() == nil
		// Another UID means that the CustomResourceDefinition was deleted and created again, and its DataVolumes with it.
		if stop != nil && (!there || string(kind.GetUID()) != uid) {
			stop()
			stop = nil
			s.publish(ctx, nil)
			log.FromContext(ctx).Info("DataVolumes are gone: volumes that need them wait", "crd", CRD)
		}
		switch {
		case there && stop == nil:
			uid = string(kind.GetUID())
			var watching context.Context
			watching, stop = context.WithCancel(ctx)
			go s.watch(watching)
		case !there:
			s.settle.Do(func() { close(s.settled) })
		}
		select {
		case <-ctx.Done():
			if stop != nil {
				stop()
			}
			return
		case <-changes:
		}
	}
}

// watch caches DataVolumes until the context ends.
func (s *Store) watch(ctx context.Context) {
	logger := log.FromContext(ctx)
	late := time.AfterFunc(syncTimeout, func() { s.settle.Do(func() { close(s.settled) }) })
	defer late.Stop()
	volumes, err := s.newCache(nil)
	if err != nil {
		logger.Error(err, "Cannot watch DataVolumes")
		return
	}
	informer, err := s.informer(ctx, volumes)
	if err != nil {
		if ctx.Err() == nil {
			logger.Error(err, "Cannot watch DataVolumes")
		}
		return
	}
	changed := func(o any) {
		if tombstone, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
			o = tombstone.Obj
		}
		if dv, ok := o.(*cdi.DataVolume); ok {
			s.notify(Change(client.ObjectKeyFromObject(dv)))
		}
	}
	if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: changed, UpdateFunc: func(_, o any) { changed(o) }, DeleteFunc: changed,
	}); err != nil {
		logger.Error(err, "Cannot watch DataVolumes")
		return
	}
	go func() {
		if toolscache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
			logger.Info("DataVolumes are there", "crd", CRD)
			s.publish(ctx, &clientReader{volumes})
			s.settle.Do(func() { close(s.settled) })
		}
	}()
	if err := volumes.Start(ctx); err != nil {
		logger.Error(err, "Cannot watch DataVolumes")
	}
}

// informer waits until the API server serves DataVolumes.
func (s *Store) informer(ctx context.Context, volumes cache.Cache) (cache.Informer, error) {
	const pause = 200 * time.Millisecond
	for {
		informer, err := volumes.GetInformer(ctx, &cdi.DataVolume{}, cache.BlockUntilSynced(false))
		if err == nil || ctx.Err() != nil {
			return informer, err
		}
		log.FromContext(ctx).V(1).Info("DataVolumes are not served yet", "error", err.Error())
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(pause):
		}
	}
}

// newCache makes a cache that stops with its context. An informer of the manager's cache would retry forever.
func (s *Store) newCache(by map[client.Object]cache.ByObject) (cache.Cache, error) {
	c, err := cache.New(s.config, cache.Options{
		HTTPClient: s.client, Scheme: s.scheme, ByObject: by, DefaultTransform: cache.TransformStripManagedFields(),
	})
	if err != nil {
		return nil, fmt.Errorf("create a cache: %w", err)
	}
	return c, nil
}

// publish sets the current reader, unless the reader's context has ended.
func (s *Store) publish(ctx context.Context, r *clientReader) {
	s.publishing.Lock()
	defer s.publishing.Unlock()
	if r != nil && ctx.Err() != nil {
		return
	}
	s.current.Store(r)
	s.notify(Change{})
}

func (s *Store) notify(c Change) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.subscribers {
		f(c)
	}
}

// subscribe calls f with every change until the returned function is called. f must not block.
func (s *Store) subscribe(f func(Change)) func() {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := s.next
	s.next++
	s.subscribers[id] = f
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.subscribers, id)
	}
}
