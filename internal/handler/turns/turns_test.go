// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package turns

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"testing"
)

// queue has somebody of a namespace wait, and returns when it does.
func queue(t *testing.T, turns *Turns, namespace string, do func()) {
	t.Helper()
	before := waiting(turns)
	go func() {
		_ = turns.Do(t.Context(), namespace, func() error {
			do()
			return nil
		})
	}()
	for waiting(turns) == before {
		if t.Context().Err() != nil {
			t.Fatal("nobody waits")
		}
	}
}

func waiting(turns *Turns) int {
	turns.mu.Lock()
	defer turns.mu.Unlock()
	total := 0
	for _, q := range turns.waiting {
		total += len(q)
	}
	return total
}

func TestNamespacesTakeTurns(t *testing.T) {
	turns := New(1)
	hold, held := make(chan struct{}), make(chan struct{})
	go func() {
		_ = turns.Do(t.Context(), "busy", func() error {
			close(held)
			<-hold
			return nil
		})
	}()
	<-held
	var mu sync.Mutex
	var order []string
	var all sync.WaitGroup
	for _, namespace := range []string{"busy", "busy", "busy", "busy", "quiet", "quiet", "other"} {
		all.Add(1)
		queue(t, turns, namespace, func() {
			defer all.Done()
			mu.Lock()
			defer mu.Unlock()
			order = append(order, namespace)
		})
	}
	close(hold)
	all.Wait()
	if want := []string{"busy", "quiet", "other", "busy", "quiet", "busy", "busy"}; !slices.Equal(order, want) {
		t.Errorf("got %v, want %v", order, want)
	}
}

func TestWhoGivesUpTakesNoTurn(t *testing.T) {
	turns := New(1)
	held, hold := make(chan struct{}), make(chan struct{})
	done := make(chan error, 1)
	go func() {
		done <- turns.Do(t.Context(), "a", func() error {
			close(held)
			<-hold
			return nil
		})
	}()
	<-held
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for range 100 {
		if err := turns.Do(ended, "b", func() error { return errors.New("it had a turn") }); !errors.Is(err, context.Canceled) {
			t.Fatalf("got %v, want %v", err, context.Canceled)
		}
	}
	close(hold)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if turns.free != 1 || len(turns.order) != 0 || len(turns.waiting) != 0 {
		t.Errorf("%d turns are free, and %v wait", turns.free, turns.order)
	}
}

// No turn is lost or made when giving up and being let in happen at once.
func TestTurnsAreNeitherLostNorMade(t *testing.T) {
	const limit, callers = 3, 200
	turns := New(limit)
	var inside, most int
	var mu sync.Mutex
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			ctx, cancel := context.WithCancel(t.Context())
			if i%2 == 0 {
				go cancel()
			}
			defer cancel()
			_ = turns.Do(ctx, string(rune('a'+i%5)), func() error {
				mu.Lock()
				inside++
				most = max(most, inside)
				mu.Unlock()
				mu.Lock()
				inside--
				mu.Unlock()
				return nil
			})
		})
	}
	all.Wait()
	if most > limit || turns.free != limit || len(turns.order) != 0 || len(turns.waiting) != 0 {
		t.Errorf("%d were inside at once, %d turns are free, and %v wait", most, turns.free, turns.order)
	}
}

// take takes an amount that is free.
func take(t *testing.T, turns *Turns, namespace string, amount int64) func() {
	t.Helper()
	release, err := turns.Take(t.Context(), namespace, amount)
	if err != nil {
		t.Fatal(err)
	}
	return release
}

func TestOneNamespaceLeavesSomethingToOthers(t *testing.T) {
	turns := WithLimits(Limits{Total: 4, PerNamespace: 3, Waiting: 2})
	release := take(t, turns, "busy", 3)
	let := make(chan struct{}, 2)
	for range 2 {
		queue(t, turns, "busy", func() { let <- struct{}{} })
	}
	if _, err := turns.Take(t.Context(), "busy", 1); !errors.Is(err, ErrTooMany) {
		t.Errorf("a third one that waits: %v", err)
	}
	take(t, turns, "quiet", 1)()
	if len(let) > 0 {
		t.Error("a namespace has more than it may have")
	}
	release()
	release()
	<-let
	<-let
	take(t, turns, "quiet", 3)()
	if _, err := turns.Take(t.Context(), "quiet", 4); err == nil {
		t.Error("what can never be given is waited for")
	}
}

func TestTheLargeAreNotKeptOutByTheSmall(t *testing.T) {
	turns := WithLimits(Limits{Total: 4})
	first, second := take(t, turns, "small", 2), take(t, turns, "small", 1)
	order := make(chan string, 2)
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() {
		_, err := turns.Take(ctx, "large", 4)
		gone <- err
	}()
	for waiting(turns) == 0 && t.Context().Err() == nil {
		runtime.Gosched()
	}
	queue(t, turns, "small", func() { order <- "small" })
	second()
	if len(order) > 0 {
		t.Error("the small one has passed the large one")
	}
	cancel()
	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	// Nobody waits for the large one any more.
	<-order
	first()
	take(t, turns, "small", 4)()
	if turns.free != 4 || len(turns.taken)+len(turns.waiting)+len(turns.order) > 0 {
		t.Errorf("%d are free, %v have some, %v wait in %v", turns.free, turns.taken, turns.waiting, turns.order)
	}
}
