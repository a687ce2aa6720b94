// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtapi

import (
	"context"
	"errors"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// oneStream is a server with a stream that ends when it is closed or cut.
type oneStream struct{ closed, cut chan struct{} }

func newOneStream() oneStream { return oneStream{make(chan struct{}), make(chan struct{})} }

func (s oneStream) Run(ctx context.Context) error {
	<-ctx.Done()
	select {
	case <-s.closed:
	case <-s.cut:
	}
	return nil
}

func (s oneStream) CutStreams() { close(s.cut) }

func TestRunEndsAtOnceIfARunnableFails(t *testing.T) {
	broken, failed := make(chan struct{}), errors.New("no certificate")
	fails := manager.RunnableFunc(func(context.Context) error {
		<-broken
		return failed
	})
	ready := make(chan struct{})
	close(ready)
	done := make(chan error, 1)
	go func() { done <- run(t.Context(), newOneStream(), ready, fails) }()
	close(broken)
	if err := <-done; !errors.Is(err, failed) {
		t.Errorf("got %v, want the error of what failed", err)
	}
}

func TestRunWaitsForStreamsWhenItIsStopped(t *testing.T) {
	ready, running := make(chan struct{}), make(chan struct{})
	close(ready)
	works := manager.RunnableFunc(func(ctx context.Context) error {
		close(running)
		<-ctx.Done()
		return nil
	})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	server := newOneStream()
	go func() { done <- run(ctx, server, ready, works) }()
	<-running
	stop()
	close(server.closed)
	if err := <-done; err != nil {
		t.Error(err)
	}
	select {
	case <-server.cut:
		t.Error("the stream was cut")
	default:
	}
}
