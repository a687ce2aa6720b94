// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package optional

import (
	"context"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// Source enqueues objects when those of an optional kind change.
type Source struct {
	store *Store
	users func(context.Context, Change) []reconcile.Request
}

var _ source.SyncingSource = &Source{}

// Source returns a Source that enqueues what users returns for a change.
func (s *Store) Source(users func(context.Context, Change) []reconcile.Request) *Source {
	return &Source{store: s, users: users}
}

// Start subscribes the queue until the context ends. The users of an object are determined in a separate goroutine,
// because that may wait for a cache, and a subscriber must not block.
func (s *Source) Start(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	changes := workqueue.NewTyped[Change]()
	unsubscribe := s.store.subscribe(changes.Add)
	go func() {
		<-ctx.Done()
		unsubscribe()
		changes.ShutDown()
	}()
	go func() {
		for {
			change, shutdown := changes.Get()
			if shutdown {
				return
			}
			for _, request := range s.users(ctx, change) {
				queue.Add(request)
			}
			changes.Done(change)
		}
	}()
	return nil
}

// WaitForSync waits until the Store has determined whether the cluster has the kind.
func (s *Source) WaitForSync(ctx context.Context) error {
	select {
	case <-s.store.settled:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
