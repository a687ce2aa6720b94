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

func TestSharesAreDivided(t *testing.T) {
	s := NewShares(100, 0)
	for step, tc := range []struct {
		tenant string
		units  int64
		has    int64
		want   bool
	}{
		{"a", 51, 51, true}, {"a", 1, 51, false}, {"b", 30, 30, true}, {"b", 1, 30, false}, {"c", 9, 9, true}, {"c", 2, 9, false},
	} {
		if has, got := s.Take(tc.tenant, tc.units); got != tc.want || has != tc.has {
			t.Errorf("step %d: got %v and %d with %d free", step, got, has, s.free)
		}
	}
	for tenant, units := range map[string]int64{"a": 51, "b": 30, "c": 9} {
		s.Give(tenant, units)
	}
	if s.free != 100 || len(s.taken) != 0 {
		t.Errorf("%d are free, taken are %v", s.free, s.taken)
	}
}

func TestSharesOfATenantAreLimited(t *testing.T) {
	s := NewShares(10, 2)
	for i, want := range []bool{true, true, false} {
		if _, got := s.Take("a", 1); got != want {
			t.Errorf("unit %d: %v", i+1, got)
		}
	}
	s.Give("a", 1)
	if _, ok := s.Take("a", 1); !ok {
		t.Error("a unit is lost")
	}
	if _, ok := s.Take("b", 2); !ok {
		t.Error("the limit of a tenant applies to another one")
	}
}

const (
	burst            = 5
	initial, longest = 10 * time.Second, 5 * time.Minute
)

var began = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// taken tries to take a token at each step, and returns the times at which there was one.
func taken(l *TokenBucket, from time.Time, total, step time.Duration) []time.Duration {
	var at []time.Duration
	for elapsed := time.Duration(0); elapsed < total; elapsed += step {
		if l.Delay(from.Add(elapsed)) == 0 {
			l.Take(from.Add(elapsed))
			at = append(at, elapsed)
		}
	}
	return at
}

func TestExponentialBackoffIsCapped(t *testing.T) {
	backoff := ExponentialBackoff(initial, time.Minute)
	var got []time.Duration
	for range 5 {
		got = append(got, backoff.Step())
	}
	if want := []time.Duration{initial, 2 * initial, 4 * initial, time.Minute, time.Minute}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestIntervalGrowsUnderConstantLoad(t *testing.T) {
	l := NewTokenBucket(burst, ExponentialBackoff(initial, longest))
	at := taken(l, began, 20*time.Minute, time.Second)
	if len(at) > burst+8 {
		t.Fatalf("%d tokens in 20 minutes: %v", len(at), at)
	}
	for i := range burst {
		if at[i] != time.Duration(i)*time.Second {
			t.Errorf("the tokens of the burst are delayed: %v", at)
		}
	}
	for i := burst + 1; i < len(at); i++ {
		before, interval := at[i-1]-at[i-2], at[i]-at[i-1]
		if i > burst+1 && interval < before-2*time.Second || interval > longest+2*time.Second {
			t.Errorf("intervals of %s and %s: %v", before, interval, at)
		}
	}
	// The interval is reset when the bucket is full again.
	later := began.Add(2 * time.Hour)
	if at := taken(l, later, burst*time.Second, time.Second); len(at) != burst {
		t.Errorf("after a quiet hour: %v", at)
	}
	if l.interval != initial {
		t.Errorf("the interval is still %s", l.interval)
	}
}

func TestSlowCallerIsNotDelayed(t *testing.T) {
	l := NewTokenBucket(burst, ExponentialBackoff(initial, longest))
	if at := taken(l, began, time.Hour, 15*time.Second); len(at) != 240 {
		t.Errorf("%d of 240 tokens were available at once", len(at))
	}
}

func TestTokenIsAvailableAfterDelay(t *testing.T) {
	l, now := NewTokenBucket(burst, ExponentialBackoff(initial, longest)), began
	for n := range 50 {
		if delay := l.Delay(now); delay > 0 {
			now = now.Add(delay)
			if again := l.Delay(now); again > 0 {
				t.Fatalf("token %d has a delay of %s after the delay of %s", n, again, delay)
			}
		}
		l.Take(now)
	}
}
