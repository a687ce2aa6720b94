// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package driver

import (
	"context"
	"slices"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// keys locks volumes and snapshots by their IDs. A repeated call waits for the first one, and then finds its result.
type keys struct {
	mutex sync.Mutex
	held  map[string]chan struct{}
}

// lock waits until no other call holds one of the keys. The returned function releases them. Empty keys are ignored.
func (k *keys) lock(ctx context.Context, names ...string) (func(), error) {
	// Keys are locked in one order, so that two calls do not wait for each other.
	slices.Sort(names)
	names = slices.DeleteFunc(slices.Compact(names), func(name string) bool { return name == "" })
	for i, name := range names {
		if err := k.take(ctx, name); err != nil {
			k.release(names[:i])
			return nil, err
		}
	}
	return func() { k.release(names) }, nil
}

func (k *keys) take(ctx context.Context, name string) error {
	for {
		k.mutex.Lock()
		wait, held := k.held[name]
		if !held {
			if k.held == nil {
				k.held = map[string]chan struct{}{}
			}
			k.held[name] = make(chan struct{})
			k.mutex.Unlock()
			return nil
		}
		k.mutex.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			return status.Errorf(codes.Aborted, "another call for %s has not finished: %v", name, ctx.Err())
		}
	}
}

func (k *keys) release(names []string) {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	for _, name := range names {
		close(k.held[name])
		delete(k.held, name)
	}
}
