// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package kit

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
)

func requestIn(namespace, name string) ctrl.Request {
	return ctrl.Request{NamespacedName: types.NamespacedName{Namespace: namespace, Name: name}}
}

func newFairQueue(t *testing.T) workqueue.TypedRateLimitingInterface[ctrl.Request] {
	t.Helper()
	queue := NewFairQueue("test",
		workqueue.NewTypedItemExponentialFailureRateLimiter[ctrl.Request](time.Millisecond, time.Second))
	t.Cleanup(queue.ShutDown)
	return queue
}

func TestNamespacesTakeTurns(t *testing.T) {
	queue := newFairQueue(t)
	for i := range 1000 {
		queue.Add(requestIn("hostile", strconv.Itoa(i)))
	}
	queue.Add(requestIn("a", "1"))
	queue.Add(requestIn("a", "2"))
	queue.Add(requestIn("", "cluster"))
	queue.Add(requestIn("a", "1"))
	if queue.Len() != 1003 {
		t.Errorf("%d requests are queued", queue.Len())
	}
	var served []string
	for range 7 {
		request, _ := queue.Get()
		served = append(served, request.String())
		queue.Done(request)
	}
	queue.Add(requestIn("b", "1"))
	for range 3 {
		request, _ := queue.Get()
		served = append(served, request.String())
		queue.Done(request)
	}
	const want = "hostile/0 a/1 /cluster hostile/1 a/2 hostile/2 hostile/3 hostile/4 b/1 hostile/5"
	if got := strings.Join(served, " "); got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
	for queue.Len() > 0 {
		request, _ := queue.Get()
		queue.Done(request)
	}
	queue.Add(requestIn("a", "1"))
	if request, _ := queue.Get(); request != requestIn("a", "1") {
		t.Errorf("got %s", request)
	}
}

// A tenant's object is served third at the latest, whatever another tenant does with five thousand.
func TestAQueueOfOneNamespaceDoesNotDelayAnother(t *testing.T) {
	queue := newFairQueue(t)
	for i := range 5000 {
		queue.Add(requestIn("hostile", strconv.Itoa(i)))
	}
	for i := range 100 {
		queue.Add(requestIn("other", strconv.Itoa(i)))
		for place := 1; ; place++ {
			request, _ := queue.Get()
			queue.Add(request) // it is changed while it is reconciled
			queue.Done(request)
			if request.Namespace == "other" {
				if place > 3 {
					t.Fatalf("request %d of the other namespace was served after %d of the first", i, place-1)
				}
				break
			}
		}
	}
}

// A request that is added while it is served is served again afterwards, and one that failed after a delay.
func TestFairQueueRepeats(t *testing.T) {
	queue, request := newFairQueue(t), requestIn("a", "1")
	queue.Add(request)
	for _, again := range []func(ctrl.Request){queue.Add, queue.AddRateLimited,
		func(r ctrl.Request) { queue.AddAfter(r, time.Millisecond) }} {
		if got, _ := queue.Get(); got != request {
			t.Fatalf("got %s", got)
		}
		again(request)
		queue.Done(request)
	}
	if got, _ := queue.Get(); got != request {
		t.Fatalf("got %s", got)
	}
}

// What the API server refuses, because of a LimitRange for example, may be accepted later without an event.
func TestFailuresAreRepeatedWithinFiveMinutes(t *testing.T) {
	limiter, last := Fair(1).RateLimiter, time.Duration(0)
	for range 30 {
		delay := limiter.When(requestIn("a", "1"))
		if delay < last || delay > 5*time.Minute {
			t.Errorf("%s after %s", delay, last)
		}
		last = delay
	}
	if last != 5*time.Minute {
		t.Errorf("%s after 30 failures", last)
	}
}
