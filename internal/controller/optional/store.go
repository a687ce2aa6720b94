// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package optional caches the objects of kinds that the cluster may not have, or may get and lose while virt-controller
// runs.
package optional

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

var (
	// ErrAbsent is returned while it is known that the cluster does not have the kind.
	ErrAbsent = errors.New("the cluster does not have the kind")
	// ErrUnknown is returned until it is known whether the cluster has the kind, and until its objects have been listed.
	ErrUnknown = errors.New("it is not known yet whether the cluster has the kind")
)

// syncTimeout is how long the first list of objects may delay the start of the controllers that use them. After that,
// they run without the objects until the list succeeds.
const syncTimeout = 10 * time.Second

// The first and the maximum delay before a failed watch is retried. A kind is served shortly after its
// CustomResourceDefinition was created.
const (
	firstDelay = 200 * time.Millisecond
	maxDelay   = 30 * time.Second
)

// errStopped is the error of a cache that stops before its context ends.
var errStopped = errors.New("the cache has stopped")

var crdKind = schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"}

// Kind is a kind that the cluster may not have.
type Kind struct {
	// CRD is the name of its CustomResourceDefinition.
	CRD string
	// New returns an empty object.
	New func() client.Object
}

// Store caches the cluster's objects of a kind. It watches them only while their CustomResourceDefinition exists, so
// that no informer retries a kind that is not served. Make one with NewStore and add it to the manager.
type Store struct {
	kind   Kind
	config *rest.Config
	client *http.Client
	scheme *runtime.Scheme
	// caches makes a cache that stops with its context.
	caches func(by map[client.Object]cache.ByObject) (cache.Cache, error)

	current    atomic.Pointer[state]
	publishing sync.Mutex
	// settled is closed once the Store has determined whether the cluster has the kind, or after syncTimeout.
	settled chan struct{}
	settle  sync.Once

	mu          sync.Mutex
	subscribers map[int]func(Change)
	next        int
}

// state is the reader of the objects, or why there is none.
type state struct {
	reader client.Reader
	err    error
}

// Change is the key of an object that was created, changed or deleted. It is empty if the CustomResourceDefinition was
// installed or removed.
type Change client.ObjectKey

// NewStore makes a Store. The scheme needs the kind.
func NewStore(config *rest.Config, httpClient *http.Client, scheme *runtime.Scheme, kind Kind) *Store {
	s := &Store{
		kind: kind, config: config, client: httpClient, scheme: scheme,
		settled: make(chan struct{}), subscribers: map[int]func(Change){},
	}
	s.caches = s.newCache
	s.current.Store(&state{err: ErrUnknown})
	return s
}

// Reader returns a reader of the cached objects, or else ErrAbsent or ErrUnknown.
func (s *Store) Reader() (client.Reader, error) {
	current := s.current.Load()
	return current.reader, current.err
}

// NeedLeaderElection is false, so that a newly elected replica has its cache already.
func (s *Store) NeedLeaderElection() bool { return false }

// Start follows the CustomResourceDefinition until the context ends.
func (s *Store) Start(ctx context.Context) error {
	kind := &metav1.PartialObjectMetadata{}
	kind.SetGroupVersionKind(crdKind)
	definitions, err := s.caches(map[client.Object]cache.ByObject{
		kind: {Field: fields.OneTermEqualSelector(metav1.ObjectNameField, s.kind.CRD)},
	})
	if err != nil {
		return err
	}
	informer, err := definitions.GetInformer(ctx, kind, cache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("watch CustomResourceDefinition %s: %w", s.kind.CRD, err)
	}
	// One pending change suffices, because follow reads the current CustomResourceDefinition.
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
		return fmt.Errorf("watch CustomResourceDefinition %s: %w", s.kind.CRD, err)
	}
	done := make(chan error, 1)
	go func() { done <- definitions.Start(ctx) }()
	if toolscache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		s.follow(ctx, definitions, kind, changes)
	}
	return <-done
}

// follow watches the objects while their CustomResourceDefinition exists.
func (s *Store) follow(ctx context.Context, definitions cache.Cache, kind client.Object, changes <-chan struct{}) {
	defer s.settle.Do(func() { close(s.settled) })
	var stop context.CancelFunc
	var uid string
	for {
		err := definitions.Get(ctx, client.ObjectKey{Name: s.kind.CRD}, kind)
		exists := err == nil && kind.GetDeletionTimestamp() == nil
		// Another UID means that the CustomResourceDefinition was deleted, together with all objects, and created again.
		removed := stop != nil && (!exists || string(kind.GetUID()) != uid)
		if removed {
			stop()
			stop = nil
			log.FromContext(ctx).Info("An optional kind was removed", "crd", s.kind.CRD)
		}
		switch {
		case exists && stop == nil:
			uid = string(kind.GetUID())
			s.publish(ctx, state{err: ErrUnknown})
			var watching context.Context
			watching, stop = context.WithCancel(ctx)
			go s.watch(watching)
		case !exists:
			s.publish(ctx, state{err: ErrAbsent})
			if removed {
				s.notify(Change{})
			}
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

// watch caches the objects until the context ends. It retries a failed watch with increasing delays, because no event
// reports when it would succeed.
func (s *Store) watch(ctx context.Context) {
	deadline := time.AfterFunc(syncTimeout, func() { s.settle.Do(func() { close(s.settled) }) })
	defer deadline.Stop()
	backoff := newBackoff()
	for {
		started := time.Now()
		err := s.watchOnce(ctx)
		if ctx.Err() != nil {
			return
		}
		// The published reader is not updated any more.
		s.publish(ctx, state{err: ErrUnknown})
		if time.Since(started) > maxDelay {
			backoff = newBackoff() // The watch worked for a while.
		}
		delay := backoff.Step()
		log.FromContext(ctx).Info("Cannot watch an optional kind, trying again", "crd", s.kind.CRD, "after", delay.String(),
			"error", err.Error())
		select {
		case <-ctx.Done():
			return
		case <-time.After(delay):
		}
	}
}

func newBackoff() wait.Backoff {
	return wait.Backoff{Duration: firstDelay, Factor: 2, Jitter: 0.2, Steps: math.MaxInt32, Cap: maxDelay}
}

// watchOnce caches the objects until the context ends, or until that fails.
func (s *Store) watchOnce(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	objects, err := s.caches(nil)
	if err != nil {
		return err
	}
	// This fails until the API server serves the kind.
	informer, err := objects.GetInformer(ctx, s.kind.New(), cache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("make an informer: %w", err)
	}
	if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: s.changed, UpdateFunc: func(_, o any) { s.changed(o) }, DeleteFunc: s.changed,
	}); err != nil {
		return fmt.Errorf("add a handler to an informer: %w", err)
	}
	go func() {
		if toolscache.WaitForCacheSync(ctx.Done(), informer.HasSynced) && s.publish(ctx, state{reader: objects}) {
			log.FromContext(ctx).Info("An optional kind is there", "crd", s.kind.CRD)
			s.notify(Change{})
			s.settle.Do(func() { close(s.settled) })
		}
	}()
	if err := objects.Start(ctx); err != nil {
		return fmt.Errorf("run a cache: %w", err)
	}
	return errStopped
}

// changed reports a change of an object, or its deletion.
func (s *Store) changed(o any) {
	if tombstone, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
		o = tombstone.Obj
	}
	if object, ok := o.(client.Object); ok {
		s.notify(Change(client.ObjectKeyFromObject(object)))
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

// publish sets the current state, and reports whether it did. It does not if the context has ended, because another
// watch may have set the state since.
func (s *Store) publish(ctx context.Context, next state) bool {
	s.publishing.Lock()
	defer s.publishing.Unlock()
	if ctx.Err() != nil {
		return false
	}
	s.current.Store(&next)
	return true
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
