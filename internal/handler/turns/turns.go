// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package turns shares what the whole node has one of between namespaces: however many Pods of one namespace ask, those of another one
// wait for one turn of it at most.
package turns

import (
	"context"
	"slices"
	"sync"
)

// Turns lets a bounded number of callers in at a time. Those who wait are let in namespace by namespace, and in order within one.
type Turns struct {
	mu   sync.Mutex
	free int
	// waiting are those who wait, by namespace. A namespace without any is not in it.
	waiting map[string][]chan struct{}
	// order is that of the namespaces in waiting.
	order []string
}

// New makes Turns for so many callers at a time.
func New(limit int) *Turns { return &Turns{free: limit, waiting: map[string][]chan struct{}{}} }

// Do waits for a turn and calls do. It returns the context's error when that ends first.
func (t *Turns) Do(ctx context.Context, namespace string, do func() error) error {
	if err := t.take(ctx, namespace); err != nil {
		return err
	}
	defer t.release()
	return do()
}

func (t *Turns) take(ctx context.Context, namespace string) error {
	t.mu.Lock()
	if t.free > 0 {
		t.free--
		t.mu.Unlock()
		return nil
	}
	turn := make(chan struct{})
	if len(t.waiting[namespace]) == 0 {
		t.order = append(t.order, namespace)
	}
	t.waiting[namespace] = append(t.waiting[namespace], turn)
	t.mu.Unlock()
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
		t.leave(namespace, turn)
		return ctx.Err()
	}
}

// leave gives up waiting, and a turn that came at the same moment.
func (t *Turns) leave(namespace string, turn chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := slices.Index(t.waiting[namespace], turn)
	if i < 0 {
		t.next()
		return
	}
	t.set(namespace, slices.Delete(t.waiting[namespace], i, i+1))
	if len(t.waiting[namespace]) == 0 {
		t.order = slices.DeleteFunc(t.order, func(n string) bool { return n == namespace })
	}
}

func (t *Turns) release() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.next()
}

// next gives a turn to the first of the namespace whose turn it is. The caller holds mu.
func (t *Turns) next() {
	if len(t.order) == 0 {
		t.free++
		return
	}
	namespace := t.order[0]
	t.order = t.order[1:]
	queue := t.waiting[namespace]
	close(queue[0])
	if t.set(namespace, queue[1:]); len(queue) > 1 {
		t.order = append(t.order, namespace)
	}
}

func (t *Turns) set(namespace string, queue []chan struct{}) {
	if len(queue) == 0 {
		delete(t.waiting, namespace)
		return
	}
	t.waiting[namespace] = queue
}
