// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"context"
	"sync"

	"github.com/vireo-project/vireo/internal/brokerapi"
)

// The limits keep the memory of the process below that of its container, whatever a client does.
const (
	// inAll is how many requests of a kind are in flight. A request that hangs takes a thread.
	inAll = 768
	// reserved are those of them that only a Pod without any other request gets, so that Pods with many requests leave room for the
	// others. No kubelet supports more than 500 Pods.
	reserved = 512
	// maxConnections is how many connections are open. Each takes about 24 KiB.
	maxConnections = 2048
	// largeRequests is how many large requests are in flight, those that wait included. What they hold is decoded.
	largeRequests = 16
)

// Limiter limits the requests of one kind that are in flight, for each Pod and in all.
type Limiter struct {
	// inAll and reserved are the limits for all Pods, perPod is that for one Pod, and waiting how many more requests of a Pod wait for
	// their turn. Others are rejected.
	inAll, reserved, perPod, waiting int
	// busy is the message for a rejected request.
	busy string

	mu    sync.Mutex
	total int
	pods  map[string]*load
	// freed signals those that wait for a slot.
	freed *sync.Cond
}

// load is how many requests of a Pod are in flight and wait.
type load struct{ running, waiting int }

// NewLimiter returns a Limiter. Of a Pod, perPod requests are in flight, and waiting more wait for their turn; busy is the message for others.
func NewLimiter(perPod, waiting int, busy string) *Limiter {
	l := &Limiter{inAll: inAll, reserved: reserved, perPod: perPod, waiting: waiting, busy: busy, pods: map[string]*load{}}
	l.freed = sync.NewCond(&l.mu)
	return l
}

// InAll changes how many requests of all Pods are in flight, of which none are reserved.
func (l *Limiter) InAll(number int) *Limiter {
	l.inAll, l.reserved = number, 0
	return l
}

// acquire returns when a request of a Pod may run, and the function that ends it.
func (l *Limiter) acquire(ctx context.Context, pod string) (release func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	stop := context.AfterFunc(ctx, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.freed.Broadcast()
	})
	defer stop()
	of := l.pods[pod]
	if of == nil {
		of = &load{}
		l.pods[pod] = of
	}
	for !l.admits(of) || ctx.Err() != nil {
		if of.waiting >= l.waiting || ctx.Err() != nil {
			l.forget(pod, of)
			return nil, &brokerapi.Error{Code: brokerapi.CodeBusy, Message: l.busy}
		}
		of.waiting++
		l.freed.Wait()
		of.waiting--
	}
	of.running++
	l.total++
	return sync.OnceFunc(func() { l.release(pod, of) }), nil
}

// admits reports whether another request of a Pod may run.
func (l *Limiter) admits(of *load) bool {
	limit := l.inAll
	if of.running > 0 {
		limit -= l.reserved
	}
	return of.running < l.perPod && l.total < limit
}

func (l *Limiter) release(pod string, of *load) {
	l.mu.Lock()
	defer l.mu.Unlock()
	of.running--
	l.total--
	l.forget(pod, of)
	l.freed.Broadcast()
}

// forget removes the load of a Pod without requests.
func (l *Limiter) forget(pod string, of *load) {
	if of.running == 0 && of.waiting == 0 && l.pods[pod] == of {
		delete(l.pods, pod)
	}
}
