// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/vireo-project/vireo/internal/handler/hypervisor"
	"github.com/vireo-project/vireo/internal/libvirtrpc"
)

// largeAnswer is the one answer at a time that the C library may get although it is not small. The library keeps it outside of Go's heap, and
// nothing says to which call it belongs: so one call at a time may have such an answer.
type largeAnswer struct {
	// calls are made one after the other.
	calls sync.Mutex

	mu sync.Mutex
	// reserve waits for the call's memory. It is nil if no call may have such an answer, or it has come.
	reserve func() error
	// late cuts the connection if the answer takes too long.
	late *time.Timer
}

// begin begins a conversation with the launcher, unless the context has one.
func (c *Conn) begin(ctx context.Context) (_ context.Context, end func()) {
	return c.options.Answers.Begin(ctx, c.pod.VMI.Namespace)
}

// large makes one call whose answer may not be small.
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

func (l *largeAnswer) set(reserve func() error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reserve = reserve
	if l.late != nil {
		l.late.Stop()
		l.late = nil
	}
}

// admit waits until an answer that is not small has its memory.
func (l *largeAnswer) admit(r *relay) error {
	l.mu.Lock()
	reserve := l.reserve
	l.reserve = nil
	l.mu.Unlock()
	if reserve == nil {
		return fmt.Errorf("%w: nothing that was asked for is as long", errMessage)
	}
	if err := reserve(); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.late = time.AfterFunc(answerPatience, func() { r.cut(fmt.Errorf("%w: an answer did not arrive whole", errSilent)) })
	return nil
}

// limits are those of a connection past the C library. Its answers belong to the conversation of the context, which may last longer than
// the context. Without one, all of them are small.
func limits(ctx context.Context) libvirtrpc.Large {
	return libvirtrpc.Large{Above: hypervisor.SmallAnswer, Patience: answerPatience, Admit: func() error {
		if !hypervisor.Conversing(ctx) {
			return errMessage
		}
		return hypervisor.Reserve(context.WithoutCancel(ctx))
	}}
}
