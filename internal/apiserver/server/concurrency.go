// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"fmt"
	"net/http"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// retryAfter is the delay after which a rejected client may retry, in seconds.
const retryAfter = 1

// concurrencyLimiter limits the requests in flight of each tenant: a user, or the namespace of service accounts. A tenant may
// have at most as many requests in flight as there are free slots: a single tenant gets half of all slots, each of two tenants a
// third, and so on. So slots remain for tenants that have none.
//
// It rejects with 429 and does not queue: a request that waited here would keep its connection, its memory and its slot in the
// library's own limits, and the client can retry. The node agents queue instead (internal/agent/fairqueue), because a waiting
// caller there costs almost nothing.
type concurrencyLimiter struct {
	mu sync.Mutex
	// free is the number of free slots.
	free int
	// inFlight is the number of requests in flight by tenant. A tenant without requests has no entry.
	inFlight map[string]int
}

func newConcurrencyLimiter(slots int) *concurrencyLimiter {
	return &concurrencyLimiter{free: slots, inFlight: map[string]int{}}
}

// limit wraps a handler: it returns an error if the tenant of the request has reached its limit.
func (l *concurrencyLimiter) limit(do func(http.ResponseWriter, *http.Request) error) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error {
		tenant := tenantOf(r)
		if inFlight, ok := l.acquire(tenant); !ok {
			return apierrors.NewTooManyRequests(fmt.Sprintf(
				"%s has %d requests in flight, and the rest of what virt-api serves is reserved for other users", tenant, inFlight), retryAfter)
		}
		defer l.release(tenant)
		return do(w, r)
	}
}

// acquire takes a slot if the tenant may have one, and returns the number of slots that it has.
func (l *concurrencyLimiter) acquire(tenant string) (inFlight int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if inFlight = l.inFlight[tenant]; inFlight >= l.free {
		return inFlight, false
	}
	l.inFlight[tenant]++
	l.free--
	return inFlight + 1, true
}

func (l *concurrencyLimiter) release(tenant string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.free++
	if l.inFlight[tenant]--; l.inFlight[tenant] == 0 {
		delete(l.inFlight, tenant)
	}
}

// tenantOf returns the user of a request, or the namespace of a service account: a user who can create one service account in a
// namespace can create many.
func tenantOf(r *http.Request) string {
	user, ok := request.UserFrom(r.Context())
	if !ok {
		return "an unknown user"
	}
	if namespace, _, err := serviceaccount.SplitUsername(user.GetName()); err == nil {
		return "namespace " + namespace
	}
	return fmt.Sprintf("user %q", user.GetName())
}
