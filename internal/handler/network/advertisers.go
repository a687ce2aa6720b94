// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package network

import (
	"context"
	"io"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// firstAdvertiseRetry and maxAdvertiseRetry bound the pause, doubled each time, after a failure.
	firstAdvertiseRetry = time.Second
	maxAdvertiseRetry   = time.Minute
)

// Advertisement is what Advertisers keeps going for one Pod: Run until its context ends, again after a failure, and
// Close in the end.
type Advertisement interface {
	Run(ctx context.Context) error
	io.Closer
}

// NamespaceAdvertisement advertises the gateway of a plan in a namespace that it owns.
type NamespaceAdvertisement struct {
	*Namespace
	Plan Plan
}

// Run advertises until the context ends, or not at all when there is nothing to advertise.
func (a NamespaceAdvertisement) Run(ctx context.Context) error {
	return Advertise(ctx, a.Namespace, a.Plan)
}

// Advertisers keeps at most one Advertisement going for each Pod.
type Advertisers struct {
	log logr.Logger
	// pause waits and says whether to go on.
	pause func(context.Context, time.Duration) bool

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu      sync.Mutex
	running map[types.UID]context.CancelFunc
}

// NewAdvertisers makes Advertisers that work until the context given to Start ends.
func NewAdvertisers(log logr.Logger) *Advertisers {
	ctx, cancel := context.WithCancel(logr.NewContext(context.Background(), log))
	return &Advertisers{log: log, pause: pause, ctx: ctx, cancel: cancel, running: map[types.UID]context.CancelFunc{}}
}

// Start waits until the context ends and then for all that goes on to end.
func (a *Advertisers) Start(ctx context.Context) error {
	<-ctx.Done()
	// Under the lock: nothing begins once the wait has begun.
	a.mu.Lock()
	a.cancel()
	a.mu.Unlock()
	a.wg.Wait()
	return nil
}

// Keep runs what open returns for a Pod until Forget. It opens nothing when there is something for the Pod already,
// even if that had nothing to do.
func (a *Advertisers) Keep(pod types.UID, open func() (Advertisement, error)) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, found := a.running[pod]; found || a.ctx.Err() != nil {
		return nil
	}
	advertisement, err := open()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(a.ctx)
	a.running[pod] = cancel
	a.wg.Go(func() { a.run(ctx, pod, advertisement) })
	return nil
}

// Forget ends what goes on for a Pod. It does not wait.
func (a *Advertisers) Forget(pod types.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if cancel, found := a.running[pod]; found {
		cancel()
		delete(a.running, pod)
	}
}

func (a *Advertisers) run(ctx context.Context, pod types.UID, advertisement Advertisement) {
	defer func() { _ = advertisement.Close() }()
	for retry := firstAdvertiseRetry; ; retry = min(2*retry, maxAdvertiseRetry) {
		err := advertisement.Run(ctx)
		if err == nil || ctx.Err() != nil {
			return
		}
		a.log.Error(err, "The guest gets no IPv6 gateway for now", "pod", pod, "retryIn", retry.String())
		if !a.pause(ctx, retry) {
			return
		}
	}
}
