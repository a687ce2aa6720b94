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
type oneStream struct{ running, closed, cut chan struct{} }

func newOneStream() oneStream {
	return oneStream{make(chan struct{}), make(chan struct{}), make(chan struct{})}
}

func (s oneStream) Run(ctx context.Context) error {
	close(s.running)
	<-ctx.Done()
	select {
	case <-s.closed:
	case <-s.cut:
	}
	return nil
}

func (s oneStream) CutStreams() { close(s.cut) }

// start runs a server, with one runnable, until the context ends.
func start(ctx context.Context, server oneStream, runnable manager.RunnableFunc) <-chan error {
	ready, done := make(chan struct{}), make(chan error, 1)
	close(ready)
	go func() { done <- run(ctx, server, ready, runnable) }()
	<-server.running
	return done
}

func TestRunEndsAtOnceIfARunnableFails(t *testing.T) {
	broken, failed := make(chan struct{}), errors.New("no certificate")
	done := start(t.Context(), newOneStream(), func(context.Context) error {
		<-broken
		return failed
	})
	close(broken)
	if err := <-done; !errors.Is(err, failed) {
		t.Errorf("got %v, want the error of what failed", err)
	}
}

func TestRunWaitsForStreamsWhenItIsStopped(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	server := newOneStream()
	done := start(ctx, server, func(ctx context.Context) error {
		<-ctx.Done()
		return nil
	})
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
