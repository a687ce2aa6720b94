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

// retryAfter is when a client that was refused may try again, in seconds.
const retryAfter = 1

// shares divide the requests in flight between those who make them. One may have as many as are left free: alone half of all, a third
// if another one has as many, and so on. Something is always left for whoever comes next. They refuse, unlike
// internal/handler/turns, which queues: a request that waits keeps its connection and its memory, and its client can ask again.
type shares struct {
	total int

	mu sync.Mutex
	// free is how many more there may be.
	free int
	// taken are those in flight, by who made them.
	taken map[string]int
}

func newShares(total int) *shares { return &shares{total: total, free: total, taken: map[string]int{}} }

// limit refuses requests of those who have their share.
func (s *shares) limit(do func(http.ResponseWriter, *http.Request) error) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error {
		who := requester(r)
		if taken, ok := s.enter(who); !ok {
			return apierrors.NewTooManyRequests(
				fmt.Sprintf("%s has %d requests in flight, and the rest of what virt-api serves is reserved for other users", who, taken), retryAfter)
		}
		defer s.leave(who)
		return do(w, r)
	}
}

func (s *shares) enter(who string) (taken int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if taken = s.taken[who]; taken >= s.free {
		return taken, false
	}
	s.taken[who]++
	s.free--
	return taken + 1, true
}

func (s *shares) leave(who string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free++
	if s.taken[who]--; s.taken[who] == 0 {
		delete(s.taken, who)
	}
}

// requester is the user, or the namespace of a service account: who may make one in it may make many.
func requester(r *http.Request) string {
	user, ok := request.UserFrom(r.Context())
	if !ok {
		return "an unknown user"
	}
	if namespace, _, err := serviceaccount.SplitUsername(user.GetName()); err == nil {
		return "namespace " + namespace
	}
	return fmt.Sprintf("user %q", user.GetName())
}
