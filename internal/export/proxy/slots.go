// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package proxy

import (
	"context"
	"sync"
)

// slots limit concurrent requests to maxDownloads, and to maxOfNamespace in a namespace. A namespace gets no slot if it has as many as are
// free, so that a few namespaces cannot take all.
type slots struct {
	mu    sync.Mutex
	total int
	of    map[string]int
}

func newSlots() *slots { return &slots{of: map[string]int{}} }

// acquire takes a slot, or returns false.
func (s *slots) acquire(namespace string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of[namespace] >= min(maxOfNamespace, maxDownloads-s.total) {
		return false
	}
	s.total++
	s.of[namespace]++
	return true
}

// release returns a slot.
func (s *slots) release(namespace string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.total--
	if s.of[namespace]--; s.of[namespace] == 0 {
		delete(s.of, namespace)
	}
}

// queues contain a queue for each export, in which requests wait for one of its slots. Anyone can take a slot, for a moment. If further
// requests were refused, a few clients with a wrong token could keep out those with the right one.
type queues struct {
	// each is how many slots an export has.
	each int

	mu sync.Mutex
	of map[key]*queue
}

// key is the key of an export.
type key struct{ namespace, name string }

type queue struct {
	// slots contains an element for each slot that is taken. Requests that wait get one in the order of their arrival.
	slots chan struct{}
	// requests is how many requests wait or have a slot. The mutex of the queues guards it.
	requests int
}

func newQueues(each int) *queues { return &queues{each: each, of: map[key]*queue{}} }

// acquire takes a slot of an export, or returns false when the context ends. The caller calls release if it returns true.
func (q *queues) acquire(ctx context.Context, of key) bool {
	select {
	case q.add(of).slots <- struct{}{}:
		return true
	case <-ctx.Done():
		q.mu.Lock()
		defer q.mu.Unlock()
		q.remove(of)
		return false
	}
}

// release returns a slot.
func (q *queues) release(of key) {
	q.mu.Lock()
	defer q.mu.Unlock()
	<-q.of[of].slots // does not wait: the caller has one
	q.remove(of)
}

// add adds a request, which waits for a slot.
func (q *queues) add(of key) *queue {
	q.mu.Lock()
	defer q.mu.Unlock()
	one := q.of[of]
	if one == nil {
		one = &queue{slots: make(chan struct{}, q.each)}
		q.of[of] = one
	}
	one.requests++
	return one
}

// remove removes a request. The caller holds the mutex.
func (q *queues) remove(of key) {
	if q.of[of].requests--; q.of[of].requests == 0 {
		delete(q.of, of)
	}
}
