// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package network

import (
	"context"
	"encoding/hex"
	"errors"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
)

// fakeAdvertisement fails a number of times and then runs until its context is done.
type fakeAdvertisement struct {
	failures atomic.Int32
	nothing  bool
	running  chan struct{}
	ended    chan struct{}
}

func newFakeAdvertisement() *fakeAdvertisement {
	return &fakeAdvertisement{running: make(chan struct{}, 100), ended: make(chan struct{})}
}

func (a *fakeAdvertisement) run(ctx context.Context) error {
	if a.failures.Add(-1) >= 0 {
		return errors.New("no bridge")
	}
	defer close(a.ended)
	if a.nothing {
		return nil
	}
	a.running <- struct{}{}
	<-ctx.Done()
	return nil
}

// never returns an Advertisement that must not be run.
func never(t *testing.T, why string) Advertisement {
	return func(context.Context) error {
		t.Error(why)
		return nil
	}
}

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
	a.Run("pod", first.run)
	a.Run("other", other.run)
	receive(t, first.running)
	receive(t, other.running)
	for range 3 {
		a.Run("pod", never(t, "a second one runs for the same Pod"))
	}
	a.Forget("pod")
	receive(t, first.ended)
	select {
	case <-other.ended:
		t.Error("another Pod's was stopped, too")
	default:
	}
	again := newFakeAdvertisement()
	a.Run("pod", again.run)
	receive(t, again.running)
	stop()
	receive(t, again.ended)
	receive(t, other.ended)
	a.Run("late", never(t, "one was started after the stop"))
}

func TestAdvertisersRetry(t *testing.T) {
	a, pauses, stop := startAdvertisers(t)
	failing := newFakeAdvertisement()
	failing.failures.Store(8)
	a.Run("pod", failing.run)
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
	receive(t, failing.ended)
}

func TestAdvertisersWithNothingToAdvertise(t *testing.T) {
	a, pauses, stop := startAdvertisers(t)
	silent := newFakeAdvertisement()
	silent.nothing = true
	a.Run("pod", silent.run)
	receive(t, silent.ended)
	a.Run("pod", never(t, "one that has returned was run again"))
	stop()
	if len(pauses) != 0 {
		t.Errorf("%d retries", len(pauses))
	}
}

// The flags mean that addresses and all other configuration come from DHCPv6.
func TestRouterMessage(t *testing.T) {
	bridge := Router{MAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, MTU: 1400}
	got, err := routerMessage(bridge, netip.MustParsePrefix("fd10:0:2::5/120"))
	const want = "86000000" + "40c02328" + "0000000000000000" + "0101020000000001" + "0501000000000578" +
		"03047880ffffffffffffffff00000000" + "fd100000000200000000000000000000"
	if err != nil || hex.EncodeToString(got) != want {
		t.Errorf("got %x, %v, want %s", got, err, want)
	}
}

func TestNothingToAdvertise(t *testing.T) {
	open := func(context.Context, string) (Router, error) { return Router{}, nil }
	plan := Plan{Interfaces: []Interface{{Binding: Bridge}, {Binding: Masquerade}}}
	for name, plan := range map[string]Plan{"a Pod without IPv6": plan, "no masquerade": {}} {
		if err := AdvertiseFor(plan, open)(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
