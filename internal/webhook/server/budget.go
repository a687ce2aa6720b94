// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"net"
	"net/http"
	"sync"
)

const (
	// maxBodies limits the bodies of the requests in flight, in bytes. Most are smaller than 100 KiB.
	maxBodies = 128 << 20
	// maxBody limits one body. It is controller-runtime's limit: two objects of the greatest size that the API server accepts.
	maxBody = 7 << 20
)

// budget limits the memory for bodies. The bodies of one client, by its address, may have as much as is left by all together: one client
// gets half of the memory, each of two a third. So one that sends bodies without an end does not keep out the others.
type budget struct {
	mu   sync.Mutex
	left int64
	// used is what the bodies of each client have. A client without bodies has no entry.
	used map[string]int64
}

func newBudget(size int64) *budget { return &budget{left: size, used: map[string]int64{}} }

// limit returns a handler that refuses requests whose bodies are beyond the budget. The API server repeats such a request, because the
// response has a Retry-After.
func (b *budget) limit(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		size := r.ContentLength
		if size < 0 {
			size = maxBody // of unknown length
		}
		if size > maxBody {
			refuse(w, http.StatusRequestEntityTooLarge)
			return
		}
		client := r.RemoteAddr
		if host, _, err := net.SplitHostPort(client); err == nil {
			client = host
		}
		if !b.take(client, size) {
			w.Header().Set("Retry-After", "1")
			refuse(w, http.StatusTooManyRequests)
			return
		}
		defer b.give(client, size)
		next.ServeHTTP(w, r)
	})
}

// take reserves memory for a client's body.
func (b *budget) take(client string, size int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.used[client]+size > b.left {
		return false
	}
	b.left -= size
	b.used[client] += size
	return true
}

func (b *budget) give(client string, size int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left += size
	if b.used[client] -= size; b.used[client] == 0 {
		delete(b.used, client)
	}
}
