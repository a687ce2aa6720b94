// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/libvirtwire"
)

// largeResponse admits one large response at a time to the C library. The library keeps it outside of Go's heap, and the relay
// cannot find out to which call it belongs, so only one call at a time may have such a response.
type largeResponse struct {
	// calls is held during a call that may have a large response.
	calls sync.Mutex

	mu sync.Mutex
	// reserve waits for the call's memory. It is nil if no call may have a large response, or it has arrived.
	reserve func() error
	// late closes the connection if the response takes too long.
	late *time.Timer
}

// startConversation starts a conversation with the launcher, unless the context has one.
func (c *Conn) startConversation(ctx context.Context) (_ context.Context, end func()) {
	return c.options.Responses.StartConversation(ctx, c.pod.VMI.Namespace)
}

// large makes a call whose response may be large.
func (c *Conn) large(ctx context.Context, call func() error) error {
	l := &c.relay.large
	l.calls.Lock()
	defer l.calls.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.relay.ctx, cancel)()
	l.set(func() error { return hypervisor.Reserve(ctx) })
	defer l.set(nil)
	return call()
}

func (l *largeResponse) set(reserve func() error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reserve = reserve
	if l.late != nil {
		l.late.Stop()
		l.late = nil
	}
}

// admit waits for the memory for a large response.
func (l *largeResponse) admit(r *relay) error {
	l.mu.Lock()
	reserve := l.reserve
	l.reserve = nil
	l.mu.Unlock()
	if reserve == nil {
		return fmt.Errorf("%w: no call is waiting for a large response", errMessage)
	}
	// Responses wait behind this one.
	resume := r.deadlines.pause()
	err := reserve()
	resume()
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.late = time.AfterFunc(largeResponseTimeout, func() { r.cut(fmt.Errorf("%w: a response was not received completely", errSilent)) })
	return nil
}

// limits returns the limits of a direct connection. Its responses belong to the conversation of the context, which may last
// longer than the context. Without one, all responses must be small.
func limits(ctx context.Context) libvirtwire.Large {
	return libvirtwire.Large{Above: hypervisor.SmallResponse, Timeout: largeResponseTimeout, Admit: func() error {
		if !hypervisor.InConversation(ctx) {
			return errMessage
		}
		return hypervisor.Reserve(context.WithoutCancel(ctx))
	}}
}
