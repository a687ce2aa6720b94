// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package datavolume

import (
	"context"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// Source wakes a controller by DataVolumes.
type Source struct {
	store *Store
	users func(context.Context, Change) []reconcile.Request
}

var _ source.SyncingSource = &Source{}

// Source wakes those whom a change concerns.
func (s *Store) Source(users func(context.Context, Change) []reconcile.Request) *Source {
	return &Source{store: s, users: users}
}

// Start subscribes the queue until the context ends. Changes are looked up by a goroutine of their own: the lookup may wait
// for a cache, for which those who tell must not wait.
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

// WaitForSync waits until it is known whether the cluster has DataVolumes.
func (s *Source) WaitForSync(ctx context.Context) error {
	select {
	case <-s.store.settled:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
