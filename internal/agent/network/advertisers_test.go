// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package network

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
)

// fakeAdvertisement is an Advertisement that fails a number of times and then runs until its context is done.
type fakeAdvertisement struct {
	failures atomic.Int32
	nothing  bool
	running  chan struct{}
	closed   chan struct{}
}

func newFakeAdvertisement() *fakeAdvertisement {
	return &fakeAdvertisement{running: make(chan struct{}, 100), closed: make(chan struct{})}
}

func (a *fakeAdvertisement) Run(ctx context.Context) error {
	if a.failures.Add(-1) >= 0 {
		return errors.New("no bridge")
	}
	if a.nothing {
		return nil
	}
	a.running <- struct{}{}
	<-ctx.Done()
	return nil
}

func (a *fakeAdvertisement) Close() error {
	close(a.closed)
	return nil
}

func (a *fakeAdvertisement) open() (Advertisement, error) { return a, nil }

// startAdvertisers starts Advertisers that send their delays to a channel instead of waiting.
func startAdvertisers(t *testing.T) (a *Advertisers, pauses chan time.Duration, stop func()) {
	t.Helper()
	pauses = make(chan time.Duration, 100)
	a = NewAdvertisers(logr.Discard())
	a.pause = func(ctx context.Context, d time.Duration) bool {
		pauses <- d
		return ctx.Err() == nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Start(ctx) }()
	stop = func() {
		t.Helper()
		cancel()
		if err := receive(t, done); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(cancel)
	return a, pauses, stop
}

// receive receives from a channel, with a timeout.
func receive[T any](t *testing.T, from <-chan T) (got T) {
	t.Helper()
	select {
	case got = <-from:
	case <-time.After(20 * time.Second):
		t.Fatal("nothing was received")
	}
	return got
}

func TestAdvertisersRunOnePerPod(t *testing.T) {
	a, _, stop := startAdvertisers(t)
	first, other := newFakeAdvertisement(), newFakeAdvertisement()
	if err := errors.Join(a.Run("pod", first.open), a.Run("other", other.open)); err != nil {
		t.Fatal(err)
	}
	receive(t, first.running)
	receive(t, other.running)
	for range 3 {
		if err := a.Run("pod", func() (Advertisement, error) {
			t.Error("a second one was opened for the same Pod")
			return newFakeAdvertisement(), nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	a.Forget("pod")
	receive(t, first.closed)
	select {
	case <-other.closed:
		t.Error("another Pod's was closed, too")
	default:
	}
	again := newFakeAdvertisement()
	if err := a.Run("pod", again.open); err != nil {
		t.Fatal(err)
	}
	receive(t, again.running)
	stop()
	receive(t, again.closed)
	receive(t, other.closed)
}

func TestAdvertisersRetry(t *testing.T) {
	a, pauses, stop := startAdvertisers(t)
	failing := newFakeAdvertisement()
	failing.failures.Store(8)
	if err := a.Run("pod", failing.open); err != nil {
		t.Fatal(err)
	}
	receive(t, failing.running)
	want := firstAdvertiseRetry
	for range 8 {
		if got := receive(t, pauses); got != want {
			t.Errorf("a delay of %s, want %s", got, want)
		}
		want = min(2*want, maxAdvertiseRetry)
	}
	if want != maxAdvertiseRetry {
		t.Errorf("the delays do not reach their limit: %s", want)
	}
	stop()
	receive(t, failing.closed)
}

func TestAdvertisersWithNothingToAdvertise(t *testing.T) {
	a, pauses, stop := startAdvertisers(t)
	silent := newFakeAdvertisement()
	silent.nothing = true
	if err := a.Run("pod", silent.open); err != nil {
		t.Fatal(err)
	}
	receive(t, silent.closed)
	if err := a.Run("pod", func() (Advertisement, error) {
		t.Error("one that has returned was opened again")
		return newFakeAdvertisement(), nil
	}); err != nil {
		t.Fatal(err)
	}
	stop()
	if len(pauses) != 0 {
		t.Errorf("%d retries", len(pauses))
	}
}

func TestAdvertisersRetryFailedOpen(t *testing.T) {
	a, _, stop := startAdvertisers(t)
	gone := errors.New("no such process")
	if err := a.Run("pod", func() (Advertisement, error) { return nil, gone }); !errors.Is(err, gone) {
		t.Errorf("got %v", err)
	}
	// The next reconcile tries again.
	working := newFakeAdvertisement()
	if err := a.Run("pod", working.open); err != nil {
		t.Fatal(err)
	}
	receive(t, working.running)
	stop()
	// After the stop, a reconciliation that still runs starts nothing.
	if err := a.Run("late", func() (Advertisement, error) {
		t.Error("opened after the stop")
		return newFakeAdvertisement(), nil
	}); err != nil {
		t.Fatal(err)
	}
}
