// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package limits

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"
)

// patience is how long a test waits for another goroutine.
const patience = 20 * time.Second

// enqueue calls Do in another goroutine and returns when the request is queued.
func enqueue(t *testing.T, q *Queue, namespace string, do func()) {
	t.Helper()
	before := queued(q)
	go func() {
		_ = q.Do(t.Context(), namespace, func() error {
			do()
			return nil
		})
	}()
	for deadline := time.Now().Add(patience); queued(q) == before; runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatal("the request was not queued")
		}
	}
}

func queued(q *Queue) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	total := 0
	for _, requests := range q.queued {
		total += len(requests)
	}
	return total
}

func TestRoundRobinByNamespace(t *testing.T) {
	q := NewQueue(1)
	release := acquire(t, q, "busy", 1)
	var mu sync.Mutex
	var order []string
	var all sync.WaitGroup
	for _, namespace := range []string{"busy", "busy", "busy", "busy", "quiet", "quiet", "other"} {
		all.Add(1)
		enqueue(t, q, namespace, func() {
			defer all.Done()
			mu.Lock()
			defer mu.Unlock()
			order = append(order, namespace)
		})
	}
	release()
	all.Wait()
	if want := []string{"busy", "quiet", "other", "busy", "quiet", "busy", "busy"}; !slices.Equal(order, want) {
		t.Errorf("got %v, want %v", order, want)
	}
}

func TestCanceledRequestIsNotGranted(t *testing.T) {
	q := NewQueue(1)
	release := acquire(t, q, "a", 1)
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	for range 100 {
		if err := q.Do(canceled, "b", func() error { return errors.New("it was granted") }); !errors.Is(err,
			context.Canceled) {
			t.Fatalf("got %v, want %v", err, context.Canceled)
		}
	}
	release()
	if q.free != 1 || len(q.order) != 0 || len(q.queued) != 0 {
		t.Errorf("%d units are free, and %v are queued", q.free, q.order)
	}
}

// Cancellations race with grants: no unit may be lost or granted twice.
func TestUnitsAreConserved(t *testing.T) {
	const limit, callers = 3, 200
	q := NewQueue(limit)
	var running, most int
	var mu sync.Mutex
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			ctx, cancel := context.WithCancel(t.Context())
			if i%2 == 0 {
				go cancel()
			}
			defer cancel()
			_ = q.Do(ctx, string(rune('a'+i%5)), func() error {
				mu.Lock()
				running++
				most = max(most, running)
				mu.Unlock()
				mu.Lock()
				running--
				mu.Unlock()
				return nil
			})
		})
	}
	all.Wait()
	if most > limit || q.free != limit || len(q.order) != 0 || len(q.queued) != 0 {
		t.Errorf("%d ran at once, %d units are free, and %v are queued", most, q.free, q.order)
	}
}

// acquire acquires units that are free.
func acquire(t *testing.T, q *Queue, namespace string, units int64) func() {
	t.Helper()
	release, err := q.Acquire(t.Context(), namespace, units)
	if err != nil {
		t.Fatal(err)
	}
	return release
}

func TestLimitsPerNamespace(t *testing.T) {
	q := NewQueueOf(QueueLimits{Capacity: 4, PerNamespace: 3, QueueLength: 2})
	release := acquire(t, q, "busy", 3)
	granted := make(chan struct{}, 2)
	for range 2 {
		enqueue(t, q, "busy", func() { granted <- struct{}{} })
	}
	if _, err := q.Acquire(t.Context(), "busy", 1); !errors.Is(err, ErrQueueFull) {
		t.Errorf("a third queued request: %v", err)
	}
	acquire(t, q, "quiet", 1)()
	if len(granted) > 0 {
		t.Error("a namespace uses more than its limit")
	}
	release()
	release()
	<-granted
	<-granted
	acquire(t, q, "quiet", 3)()
	if _, err := q.Acquire(t.Context(), "quiet", 4); err == nil {
		t.Error("a request above the limit of a namespace was granted")
	}
}

func TestSmallRequestsDoNotStarveLargeOnes(t *testing.T) {
	q := NewQueueOf(QueueLimits{Capacity: 4})
	first, second := acquire(t, q, "small", 2), acquire(t, q, "small", 1)
	order := make(chan string, 2)
	ctx, cancel := context.WithCancel(t.Context())
	canceled := make(chan error, 1)
	go func() {
		_, err := q.Acquire(ctx, "large", 4)
		canceled <- err
	}()
	for deadline := time.Now().Add(patience); queued(q) == 0; runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatal("the large request was not queued")
		}
	}
	enqueue(t, q, "small", func() { order <- "small" })
	second()
	if len(order) > 0 {
		t.Error("the small request overtook the large one")
	}
	cancel()
	if err := <-canceled; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	// The small request is granted once the large one is canceled.
	<-order
	first()
	acquire(t, q, "small", 4)()
	if q.free != 4 || len(q.inUse)+len(q.queued)+len(q.order) > 0 {
		t.Errorf("%d units are free, %v in use, %v queued, in the order %v", q.free, q.inUse, q.queued, q.order)
	}
}
