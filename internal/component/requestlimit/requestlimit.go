// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package requestlimit limits the rate of a component's requests to the API server to the configured one, which can
// change at any time.
package requestlimit

import (
	"context"
	"sync/atomic"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/vireo-project/vireo/internal/clusterconfig"
)

// Limiter is a rate limiter for all clients of a component.
type Limiter struct{ current atomic.Pointer[bucket] }

var _ flowcontrol.RateLimiter = (*Limiter)(nil)

// bucket is a token bucket and its rate.
type bucket struct {
	flowcontrol.RateLimiter
	rate clusterconfig.RateLimit
}

// New returns a Limiter with a rate.
func New(rate clusterconfig.RateLimit) *Limiter {
	l := &Limiter{}
	l.Set(rate)
	return l
}

// Set changes the rate. If the rate is new, its bucket starts full. Requests that are already waiting keep their token
// of the previous bucket.
func (l *Limiter) Set(rate clusterconfig.RateLimit) {
	if current := l.current.Load(); current == nil || current.rate != rate {
		l.current.Store(&bucket{flowcontrol.NewTokenBucketRateLimiter(rate.QPS, rate.Burst), rate})
	}
}

// Subscriber returns a function for clusterconfig.Store.Subscribe, which sets the rate that component selects.
func (l *Limiter) Subscriber(
	component func(clusterconfig.RateLimits) clusterconfig.RateLimit,
) func(clusterconfig.Config) {
	return func(c clusterconfig.Config) { l.Set(component(c.RateLimits)) }
}

// Config returns a copy of a client configuration whose clients share the limiter.
func (l *Limiter) Config(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.RateLimiter = l
	return config
}

// TryAccept implements flowcontrol.RateLimiter.
func (l *Limiter) TryAccept() bool { return l.current.Load().TryAccept() }

// Accept implements flowcontrol.RateLimiter.
func (l *Limiter) Accept() { l.current.Load().Accept() }

// Stop implements flowcontrol.RateLimiter.
func (l *Limiter) Stop() { l.current.Load().Stop() }

// QPS implements flowcontrol.RateLimiter.
func (l *Limiter) QPS() float32 { return l.current.Load().QPS() }

// Wait implements flowcontrol.RateLimiter.
func (l *Limiter) Wait(ctx context.Context) error { return l.current.Load().Wait(ctx) }
