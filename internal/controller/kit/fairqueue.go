// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package kit

import (
	"time"

	"golang.org/x/time/rate"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/controller"
)

const (
	// firstRetry and maxRetry are the delays after the first failure of a request, and after many. What the API server
	// refuses, because of a LimitRange for example, may be accepted later without an event, so that maxRetry is smaller
	// than controller-runtime's 1000 s.
	firstRetry, maxRetry = 5 * time.Millisecond, 5 * time.Minute
	// retryRate and retryBurst limit the failed requests of a controller per second, like controller-runtime's.
	retryRate, retryBurst = 10, 100
)

// Fair returns the options of a controller of a namespaced kind: its queue is fair, this many requests are served at a
// time, and one that fails is repeated within five minutes.
func Fair(workers int) controller.Options {
	return controller.Options{
		MaxConcurrentReconciles: workers, NewQueue: NewFairQueue,
		RateLimiter: workqueue.NewTypedMaxOfRateLimiter(
			workqueue.NewTypedItemExponentialFailureRateLimiter[ctrl.Request](firstRetry, maxRetry),
			&workqueue.TypedBucketRateLimiter[ctrl.Request]{Limiter: rate.NewLimiter(retryRate, retryBurst)},
		),
	}
}

// NewFairQueue makes a controller's queue in which namespaces take turns: however many requests one namespace has, a
// request of another one waits for at most one of each. It has no priorities, so the objects that exist when
// virt-controller starts are not reconciled after all others.
func NewFairQueue(
	name string, limiter workqueue.TypedRateLimiter[ctrl.Request],
) workqueue.TypedRateLimitingInterface[ctrl.Request] {
	return workqueue.NewTypedRateLimitingQueueWithConfig(limiter, workqueue.TypedRateLimitingQueueConfig[ctrl.Request]{
		Name: name,
		DelayingQueue: workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[ctrl.Request]{
			Name:  name,
			Queue: workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[ctrl.Request]{Name: name, Queue: &turns{}}),
		}),
	})
}

// turns are requests in the order in which they are served: round-robin by namespace, first in first out within one.
type turns struct {
	// requests are those of each namespace. Namespaces without any are absent.
	requests map[string][]ctrl.Request
	// order is the order in which the namespaces in requests are served.
	order []string
	len   int
}

// Touch implements workqueue.Queue. A request that is added again keeps its place.
func (*turns) Touch(ctrl.Request) {}

// Push implements workqueue.Queue.
func (q *turns) Push(request ctrl.Request) {
	if q.requests == nil {
		q.requests = map[string][]ctrl.Request{}
	}
	if len(q.requests[request.Namespace]) == 0 {
		q.order = append(q.order, request.Namespace)
	}
	q.requests[request.Namespace] = append(q.requests[request.Namespace], request)
	q.len++
}

// Len implements workqueue.Queue.
func (q *turns) Len() int { return q.len }

// Pop implements workqueue.Queue.
func (q *turns) Pop() ctrl.Request {
	namespace := q.order[0]
	q.order = q.order[1:]
	request, others := q.requests[namespace][0], q.requests[namespace][1:]
	q.len--
	if len(others) == 0 {
		delete(q.requests, namespace)
		return request
	}
	q.requests[namespace] = others
	q.order = append(q.order, namespace)
	return request
}
