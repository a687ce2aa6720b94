// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package requestlimit

import (
	"testing"

	"github.com/vireo-project/vireo/internal/clusterconfig"
)

// taken returns how many of ten requests are accepted at once.
func taken(l *Limiter) int {
	accepted := 0
	for range 10 {
		if l.TryAccept() {
			accepted++
		}
	}
	return accepted
}

func TestRateFollowsTheConfiguration(t *testing.T) {
	// So few per second that no token is added during the test.
	rate := func(burst int) clusterconfig.RateLimit { return clusterconfig.RateLimit{QPS: 1e-6, Burst: burst} }
	l := New(rate(2))
	if n := taken(l); n != 2 {
		t.Errorf("%d requests at once with a burst of 2", n)
	}
	set := l.Subscriber(func(limits clusterconfig.RateLimits) clusterconfig.RateLimit { return limits.Handler })
	set(clusterconfig.Config{RateLimits: clusterconfig.RateLimits{API: rate(9), Handler: rate(2)}})
	if n := taken(l); n != 0 {
		t.Errorf("%d more requests although the rate did not change", n)
	}
	set(clusterconfig.Config{RateLimits: clusterconfig.RateLimits{API: rate(9), Handler: rate(5)}})
	if n := taken(l); n != 5 || l.QPS() != 1e-6 {
		t.Errorf("%d requests at once with a burst of 5, %g per second", n, l.QPS())
	}
}
