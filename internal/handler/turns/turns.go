// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package turns shares what the whole node has only so much of between namespaces: however many Pods of one namespace ask, another
// namespace that waits is next after one request of each of the others. It queues, as one who waits costs next to nothing here;
// virt-api refuses instead (shares in internal/subresource/server), as a request that waits there costs as much as one that is served.
package turns

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
)

// ErrTooMany means that as many of a namespace wait as may.
var ErrTooMany = errors.New("too many of the namespace wait already")

// Limits are what there is to share.
type Limits struct {
	// Total is how much may be taken at a time: callers, or bytes, or whatever else Take counts.
	Total int64
	// PerNamespace is how much of that one namespace may have; 0 means all of it.
	PerNamespace int64
	// Waiting is how many of a namespace may wait; 0 means that there is no limit.
	Waiting int
}

// Turns lets callers in as long as there is something left. Those who wait are let in namespace by namespace, and in order within one.
type Turns struct {
	limits Limits

	mu   sync.Mutex
	free int64
	// taken is how much each namespace has. A namespace that has nothing is not in it.
	taken map[string]int64
	// waiting are those who wait, by namespace. A namespace without any is not in it.
	waiting map[string][]*turn
	// order is that of the namespaces in waiting.
	order []string
}

// turn is what somebody waits for.
type turn struct {
	amount int64
	given  chan struct{}
}

// New makes Turns for so many callers at a time.
func New(limit int) *Turns { return WithLimits(Limits{Total: int64(limit)}) }

// WithLimits makes Turns within limits.
func WithLimits(limits Limits) *Turns {
	if limits.PerNamespace == 0 {
		limits.PerNamespace = limits.Total
	}
	return &Turns{limits: limits, free: limits.Total, taken: map[string]int64{}, waiting: map[string][]*turn{}}
}

// Do waits for a turn and calls do. It returns the context's error when that ends first, and ErrTooMany when it may not wait.
func (t *Turns) Do(ctx context.Context, namespace string, do func() error) error {
	release, err := t.Take(ctx, namespace, 1)
	if err != nil {
		return err
	}
	defer release()
	return do()
}

// Take waits for an amount. What it returns gives the amount back, once. Who has something must not wait for more: two who did could
// wait for each other.
func (t *Turns) Take(ctx context.Context, namespace string, amount int64) (release func(), err error) {
	if most := min(t.limits.Total, t.limits.PerNamespace); amount > most {
		return nil, fmt.Errorf("%d is more than the %d that a namespace may have", amount, most)
	}
	mine := &turn{amount: amount, given: make(chan struct{})}
	if !t.enqueue(namespace, mine) {
		return nil, ErrTooMany
	}
	select {
	case <-mine.given:
	default:
		select {
		case <-mine.given:
		case <-ctx.Done():
			t.leave(namespace, mine)
			return nil, ctx.Err()
		}
	}
	return sync.OnceFunc(func() { t.give(namespace, amount) }), nil
}

// enqueue is false when there is no turn at once and nobody more may wait for one.
func (t *Turns) enqueue(namespace string, mine *turn) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.waiting[namespace]) == 0 {
		t.order = append(t.order, namespace)
	}
	t.waiting[namespace] = append(t.waiting[namespace], mine)
	t.next()
	if waiting := len(t.waiting[namespace]); t.limits.Waiting > 0 && waiting > t.limits.Waiting {
		// The last of them is this one: those before it were let in first.
		t.remove(namespace, waiting-1)
		return false
	}
	return true
}

// leave gives up waiting, and a turn that came at the same moment.
func (t *Turns) leave(namespace string, mine *turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if i := slices.Index(t.waiting[namespace], mine); i >= 0 {
		t.remove(namespace, i)
	} else {
		t.back(namespace, mine.amount)
	}
	// Somebody behind it may need less.
	t.next()
}

func (t *Turns) give(namespace string, amount int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.back(namespace, amount)
	t.next()
}

// back takes an amount back. The caller holds mu.
func (t *Turns) back(namespace string, amount int64) {
	t.free += amount
	if t.taken[namespace] -= amount; t.taken[namespace] == 0 {
		delete(t.taken, namespace)
	}
}

// next lets in whom it can, beginning with the namespace whose turn it is. One that has all that it may have is passed over; one that needs
// more than is left is waited for, or those who need little would keep it out for ever. The caller holds mu.
func (t *Turns) next() {
	for i := 0; i < len(t.order); {
		namespace := t.order[i]
		first := t.waiting[namespace][0]
		if t.taken[namespace]+first.amount > t.limits.PerNamespace {
			i++
			continue
		}
		if first.amount > t.free {
			return
		}
		t.free -= first.amount
		t.taken[namespace] += first.amount
		close(first.given)
		t.remove(namespace, 0)
		// It goes to the end of the order if others of it wait.
		if len(t.waiting[namespace]) > 0 {
			t.order = append(slices.Delete(t.order, i, i+1), namespace)
		}
	}
}

// remove takes one who waits out of the queue. The caller holds mu.
func (t *Turns) remove(namespace string, i int) {
	if t.waiting[namespace] = slices.Delete(t.waiting[namespace], i, i+1); len(t.waiting[namespace]) == 0 {
		delete(t.waiting, namespace)
		t.order = slices.DeleteFunc(t.order, func(n string) bool { return n == namespace })
	}
}
