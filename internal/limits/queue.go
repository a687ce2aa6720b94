// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package limits

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
)

// ErrQueueFull means that the namespace has as many queued requests as its limit allows.
var ErrQueueFull = errors.New("the queue of the namespace is full")

// QueueLimits configures a Queue.
type QueueLimits struct {
	// Capacity is how many units may be in use at a time. A unit is whatever Acquire counts, such as a call or a byte.
	Capacity int64
	// PerNamespace is how many units one namespace may use; 0 means Capacity.
	PerNamespace int64
	// QueueLength is how many requests of a namespace may be queued; 0 means no limit.
	QueueLength int
}

// Queue limits the use of a resource. It grants requests while there is capacity. Queued requests are granted
// round-robin by namespace, first in first out within one: however many requests of one namespace are queued, a request
// of another namespace waits for at most one request of each other namespace. The agent queues, because a queued
// request costs almost nothing there. virt-api refuses with Shares, because there it costs as much as a served one.
type Queue struct {
	limits QueueLimits

	mu   sync.Mutex
	free int64
	// inUse is the number of units that each namespace uses. Namespaces that use none are absent.
	inUse map[string]int64
	// queued are the queued requests by namespace. Namespaces without any are absent.
	queued map[string][]*request
	// order is the order in which the namespaces in queued are served.
	order []string
}

// request is a queued request for units.
type request struct {
	units   int64
	granted chan struct{}
}

// NewQueue returns a Queue that limits the number of concurrent callers.
func NewQueue(concurrency int) *Queue {
	return NewQueueOf(QueueLimits{Capacity: int64(concurrency)})
}

// NewQueueOf returns a Queue with the given limits.
func NewQueueOf(limits QueueLimits) *Queue {
	if limits.PerNamespace == 0 {
		limits.PerNamespace = limits.Capacity
	}
	return &Queue{limits: limits, free: limits.Capacity, inUse: map[string]int64{}, queued: map[string][]*request{}}
}

// Do acquires one unit, calls do and releases the unit. It returns the errors of Acquire and of do.
func (q *Queue) Do(ctx context.Context, namespace string, do func() error) error {
	release, err := q.Acquire(ctx, namespace, 1)
	if err != nil {
		return err
	}
	defer release()
	return do()
}

// Acquire waits for units. release returns them and may be called more than once. Acquire returns the context's error
// when that is done first, ErrQueueFull when the request cannot be queued, and an error when the namespace may never
// use that many units. A caller that has units must not acquire more: two such callers could deadlock.
func (q *Queue) Acquire(ctx context.Context, namespace string, units int64) (release func(), err error) {
	if limit := min(q.limits.Capacity, q.limits.PerNamespace); units > limit {
		return nil, fmt.Errorf("%d is more than the %d that a namespace may have", units, limit)
	}
	r := &request{units: units, granted: make(chan struct{})}
	if !q.enqueue(namespace, r) {
		return nil, ErrQueueFull
	}
	select {
	case <-r.granted:
	default:
		select {
		case <-r.granted:
		case <-ctx.Done():
			q.cancel(namespace, r)
			return nil, ctx.Err()
		}
	}
	return sync.OnceFunc(func() { q.release(namespace, units) }), nil
}

// enqueue grants or queues a request. It returns false if the request is not granted at once and the queue is full.
func (q *Queue) enqueue(namespace string, r *request) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.queued[namespace]) == 0 {
		q.order = append(q.order, namespace)
	}
	q.queued[namespace] = append(q.queued[namespace], r)
	q.dispatch()
	if length := len(q.queued[namespace]); q.limits.QueueLength > 0 && length > q.limits.QueueLength {
		// The request is the last one: those before it are granted first.
		q.remove(namespace, length-1)
		return false
	}
	return true
}

// cancel removes a request from the queue, or returns its units if it was granted meanwhile.
func (q *Queue) cancel(namespace string, r *request) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if i := slices.Index(q.queued[namespace], r); i >= 0 {
		q.remove(namespace, i)
	} else {
		q.put(namespace, r.units)
	}
	// A request behind it may need fewer units.
	q.dispatch()
}

func (q *Queue) release(namespace string, units int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.put(namespace, units)
	q.dispatch()
}

// put returns units. The caller holds mu.
func (q *Queue) put(namespace string, units int64) {
	q.free += units
	if q.inUse[namespace] -= units; q.inUse[namespace] == 0 {
		delete(q.inUse, namespace)
	}
}

// dispatch grants queued requests in the order of their namespaces. It skips a namespace that has reached its limit. It
// stops at a request that needs more units than are free: otherwise a stream of small requests could starve a large
// one. The caller has locked mu.
func (q *Queue) dispatch() {
	for i := 0; i < len(q.order); {
		namespace := q.order[i]
		first := q.queued[namespace][0]
		if q.inUse[namespace]+first.units > q.limits.PerNamespace {
			i++
			continue
		}
		if first.units > q.free {
			return
		}
		q.free -= first.units
		q.inUse[namespace] += first.units
		close(first.granted)
		q.remove(namespace, 0)
		// A namespace with more requests moves to the end of the order.
		if len(q.queued[namespace]) > 0 {
			q.order = append(slices.Delete(q.order, i, i+1), namespace)
		}
	}
}

// remove removes a request from the queue. The caller holds mu.
func (q *Queue) remove(namespace string, i int) {
	if q.queued[namespace] = slices.Delete(q.queued[namespace], i, i+1); len(q.queued[namespace]) == 0 {
		delete(q.queued, namespace)
		q.order = slices.DeleteFunc(q.order, func(n string) bool { return n == namespace })
	}
}
