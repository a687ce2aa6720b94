// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package network

import (
	"context"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// firstAdvertiseRetry and maxAdvertiseRetry bound the delay after a failure, which doubles each time.
	firstAdvertiseRetry = time.Second
	maxAdvertiseRetry   = time.Minute
)

// Advertisement is what Advertisers run for one Pod. It is run until its context is done, and again after a failure.
type Advertisement func(ctx context.Context) error

// AdvertiseFor returns the Advertisement of a plan's gateway. open opens its socket, and returns none if there is nothing to advertise.
func AdvertiseFor(plan Plan, open func(ctx context.Context, podInterface string) (Router, error)) Advertisement {
	return func(ctx context.Context) error {
		for i := range plan.Interfaces {
			planned := &plan.Interfaces[i]
			if planned.Binding != Masquerade {
				continue
			}
			router, err := open(ctx, planned.PodInterface)
			if err != nil || router.Conn == nil {
				return err
			}
			return Advertise(ctx, router, planned.IPv6) // there is one Pod network
		}
		return nil
	}
}

// Advertisers runs at most one Advertisement for each Pod.
type Advertisers struct {
	log logr.Logger
	// pause waits, and returns false if the context is done first.
	pause func(context.Context, time.Duration) bool

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu      sync.Mutex
	running map[types.UID]context.CancelFunc
}

// NewAdvertisers returns Advertisers that run until the context of Start is done.
func NewAdvertisers(log logr.Logger) *Advertisers {
	ctx, cancel := context.WithCancel(logr.NewContext(context.Background(), log))
	return &Advertisers{log: log, pause: pause, ctx: ctx, cancel: cancel, running: map[types.UID]context.CancelFunc{}}
}

// Start waits until the context is done, and then until all advertisements have stopped.
func (a *Advertisers) Start(ctx context.Context) error {
	<-ctx.Done()
	// Under the lock, so that Run does not add an advertisement during the wait.
	a.mu.Lock()
	a.cancel()
	a.mu.Unlock()
	a.wg.Wait()
	return nil
}

// Run runs an Advertisement for a Pod, until Forget. It does nothing if the Pod has one already, even one that has returned.
func (a *Advertisers) Run(pod types.UID, advertisement Advertisement) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, found := a.running[pod]; found || a.ctx.Err() != nil {
		return
	}
	ctx, cancel := context.WithCancel(a.ctx)
	a.running[pod] = cancel
	a.wg.Go(func() { a.run(ctx, pod, advertisement) })
}

// Forget stops the advertisement of a Pod. It does not wait.
func (a *Advertisers) Forget(pod types.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if cancel, found := a.running[pod]; found {
		cancel()
		delete(a.running, pod)
	}
}

func (a *Advertisers) run(ctx context.Context, pod types.UID, advertisement Advertisement) {
	for retry := firstAdvertiseRetry; ; retry = min(2*retry, maxAdvertiseRetry) {
		err := advertisement(ctx)
		if err == nil || ctx.Err() != nil {
			return
		}
		a.log.Error(err, "The guest gets no IPv6 gateway for now", "pod", pod, "retryIn", retry.String())
		if !a.pause(ctx, retry) {
			return
		}
	}
}
