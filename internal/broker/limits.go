// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package broker

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
	// largeInAll is how many requests whose response is large are in flight. One takes less than 10 MiB. They are short, as the files of
	// these volumes are in memory.
	largeInAll = 8
	// largeRequests is how many large requests are received at a time.
	largeRequests = 16
)

// limiter limits the requests of one kind that are in flight, for each Pod and in all.
type limiter struct {
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

func newLimiter(perPod, waiting int, busy string) *limiter {
	l := &limiter{inAll: inAll, reserved: reserved, perPod: perPod, waiting: waiting, busy: busy, pods: map[string]*load{}}
	l.freed = sync.NewCond(&l.mu)
	return l
}

// acquire returns when a request of a Pod may run, and the function that ends it.
func (l *limiter) acquire(ctx context.Context, pod string) (release func(), err error) {
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
func (l *limiter) admits(of *load) bool {
	limit := l.inAll
	if of.running > 0 {
		limit -= l.reserved
	}
	return of.running < l.perPod && l.total < limit
}

func (l *limiter) release(pod string, of *load) {
	l.mu.Lock()
	defer l.mu.Unlock()
	of.running--
	l.total--
	l.forget(pod, of)
	l.freed.Broadcast()
}

// forget removes the load of a Pod without requests.
func (l *limiter) forget(pod string, of *load) {
	if of.running == 0 && of.waiting == 0 && l.pods[pod] == of {
		delete(l.pods, pod)
	}
}
