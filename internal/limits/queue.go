// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package limits bounds what one tenant can take from the others. All components use these limits:
//
//   - a Queue makes callers wait until there is capacity, and serves namespaces round-robin. A waiting caller has to be
//     cheap;
//   - Shares refuse instead of waiting, and leave to the others as much as one tenant takes;
//   - a TokenBucket limits a rate, and its refill slows down while it is empty;
//   - Access limits what waits for storage that does not respond;
//   - Connections limits the open connections of a server, and closes those of the client that has most.
//
// The table of docs/conventions.md lists all bounds and their values.
package limits

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/util/wait"
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

// Shares divide a capacity among tenants, none of which waits. A tenant gets more units as long as it then has at most
// as many as were free before: taking one at a time, one tenant gets half of the capacity, each of two tenants a third,
// and so on. So small requests of a tenant that has nothing find something left. A unit is whatever Take counts, such
// as a request or a byte.
type Shares struct {
	perTenant int64

	mu   sync.Mutex
	free int64
	// taken is what each tenant has. Tenants that have nothing are absent.
	taken map[string]int64
}

// NewShares returns Shares of a capacity. perTenant is the most that a tenant may have, if its share is larger; 0 means
// no such limit.
func NewShares(capacity, perTenant int64) *Shares {
	if perTenant == 0 {
		perTenant = capacity
	}
	return &Shares{perTenant: perTenant, free: capacity, taken: map[string]int64{}}
}

// Take takes units for a tenant and reports how many the tenant has now, and whether it got them. Units that it got are
// returned by Give.
func (s *Shares) Take(tenant string, units int64) (has int64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	has = s.taken[tenant]
	if has+units > min(s.perTenant, s.free) {
		return has, false
	}
	s.free -= units
	s.taken[tenant] += units
	return has + units, true
}

// Give returns units that a tenant took.
func (s *Shares) Give(tenant string, units int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free += units
	if s.taken[tenant] -= units; s.taken[tenant] == 0 {
		delete(s.taken, tenant)
	}
}

// ExponentialBackoff returns a backoff whose delay doubles with each Step, from initial up to limit.
func ExponentialBackoff(initial, limit time.Duration) wait.Backoff {
	return wait.Backoff{Duration: initial, Factor: 2, Steps: math.MaxInt, Cap: limit}
}

// TokenBucket is a token bucket whose refill interval backs off: each token that the caller had to wait for makes the
// interval longer, and a full bucket resets it. rate.Limiter has a constant rate. It is not safe for concurrent use.
type TokenBucket struct {
	burst int
	// initial is the backoff of the refill interval, next its current state.
	initial, next wait.Backoff
	// interval is the time in which one token is added.
	interval time.Duration
	bucket   *rate.Limiter
	// delayed reports whether the caller has to wait for the next token.
	delayed bool
}

// NewTokenBucket returns a TokenBucket with a full bucket of burst tokens.
func NewTokenBucket(burst int, intervals wait.Backoff) *TokenBucket {
	l := &TokenBucket{burst: burst, initial: intervals, next: intervals, bucket: rate.NewLimiter(0, burst)}
	l.stepInterval(time.Time{})
	return l
}

// Delay returns the time until a token is available, 0 if there is one.
func (l *TokenBucket) Delay(now time.Time) time.Duration {
	missing := 1 - l.bucket.TokensAt(now)
	if missing <= 0 {
		return 0
	}
	l.delayed = true
	// Rounded up, so that there is a token after that time.
	return time.Duration(missing*float64(l.interval)) + time.Millisecond
}

// Take removes a token.
func (l *TokenBucket) Take(now time.Time) {
	if l.bucket.TokensAt(now) >= float64(l.burst) {
		l.next = l.initial
		l.stepInterval(now)
	} else if l.delayed {
		l.stepInterval(now)
	}
	l.delayed = false
	l.bucket.ReserveN(now, 1)
}

// stepInterval sets the interval to the next one of the backoff.
func (l *TokenBucket) stepInterval(now time.Time) {
	l.interval = l.next.Step()
	l.bucket.SetLimitAt(now, rate.Every(l.interval))
}
