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

// announcement is an Advertisement that fails as often as told and then goes on until its context ends.
type announcement struct {
	failures atomic.Int32
	nothing  bool
	running  chan struct{}
	closed   chan struct{}
}

func newAnnouncement() *announcement {
	return &announcement{running: make(chan struct{}, 100), closed: make(chan struct{})}
}

func (a *announcement) Run(ctx context.Context) error {
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

func (a *announcement) Close() error {
	close(a.closed)
	return nil
}

func (a *announcement) open() (Advertisement, error) { return a, nil }

// startAdvertisers starts Advertisers that note how long they pause and do not.
func startAdvertisers(t *testing.T) (a *Advertisers, pauses chan time.Duration, stop func()) {
	t.Helper()
	pauses = make(chan time.Duration, 100)
	a = NewAdvertisers(logr.Discard())
	a.pause = func(ctx context.Context, d time.Duration) bool {
		pauses <- d
		return ctx.Err() == nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.Start(ctx) }()
	stop = func() {
		t.Helper()
		cancel()
		if err := receive(t, ended); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(cancel)
	return a, pauses, stop
}

// receive takes what must come; it waits in vain only when it never would.
func receive[T any](t *testing.T, from <-chan T) (got T) {
	t.Helper()
	select {
	case got = <-from:
	case <-time.After(20 * time.Second):
		t.Fatal("nothing comes")
	}
	return got
}

func TestAdvertisersKeepOnePerPod(t *testing.T) {
	a, _, stop := startAdvertisers(t)
	first, other := newAnnouncement(), newAnnouncement()
	if err := errors.Join(a.Keep("pod", first.open), a.Keep("other", other.open)); err != nil {
		t.Fatal(err)
	}
	receive(t, first.running)
	receive(t, other.running)
	for range 3 {
		if err := a.Keep("pod", func() (Advertisement, error) {
			t.Error("a second one is opened for the same Pod")
			return newAnnouncement(), nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	a.Forget("pod")
	receive(t, first.closed)
	select {
	case <-other.closed:
		t.Error("another Pod's ended, too")
	default:
	}
	again := newAnnouncement()
	if err := a.Keep("pod", again.open); err != nil {
		t.Fatal(err)
	}
	receive(t, again.running)
	stop()
	receive(t, again.closed)
	receive(t, other.closed)
}

func TestAdvertisersTryAgain(t *testing.T) {
	a, pauses, stop := startAdvertisers(t)
	failing := newAnnouncement()
	failing.failures.Store(8)
	if err := a.Keep("pod", failing.open); err != nil {
		t.Fatal(err)
	}
	receive(t, failing.running)
	want := firstAdvertiseRetry
	for range 8 {
		if got := receive(t, pauses); got != want {
			t.Errorf("a pause of %s, want %s", got, want)
		}
		want = min(2*want, maxAdvertiseRetry)
	}
	if want != maxAdvertiseRetry {
		t.Errorf("the pauses do not reach their bound: %s", want)
	}
	stop()
	receive(t, failing.closed)
}

func TestAdvertisersWithNothingToTell(t *testing.T) {
	a, pauses, stop := startAdvertisers(t)
	silent := newAnnouncement()
	silent.nothing = true
	if err := a.Keep("pod", silent.open); err != nil {
		t.Fatal(err)
	}
	receive(t, silent.closed)
	if err := a.Keep("pod", func() (Advertisement, error) {
		t.Error("what has nothing to tell is opened again and again")
		return newAnnouncement(), nil
	}); err != nil {
		t.Fatal(err)
	}
	stop()
	if len(pauses) != 0 {
		t.Errorf("%d retries", len(pauses))
	}
}

func TestAdvertisersThatCannotOpen(t *testing.T) {
	a, _, stop := startAdvertisers(t)
	gone := errors.New("no such process")
	if err := a.Keep("pod", func() (Advertisement, error) { return nil, gone }); !errors.Is(err, gone) {
		t.Errorf("got %v", err)
	}
	// The next reconcile tries again.
	working := newAnnouncement()
	if err := a.Keep("pod", working.open); err != nil {
		t.Fatal(err)
	}
	receive(t, working.running)
	stop()
	// A reconcile that is still under way begins nothing.
	if err := a.Keep("late", func() (Advertisement, error) {
		t.Error("opened after the end")
		return newAnnouncement(), nil
	}); err != nil {
		t.Fatal(err)
	}
}
