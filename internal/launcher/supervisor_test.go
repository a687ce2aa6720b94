// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package launcher

import (
	"context"
	"testing"

	rpc "github.com/vireo-project/vireo/internal/wire/libvirtwire"
)

func TestStopWhileReconnecting(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // No connection is made.
	lost := func() *supervisor {
		s := newSupervisor(Options{Namespace: "ns", Name: "vm"}, nil, nil, nil)
		s.client = &rpc.Client{}
		return s
	}
	t.Run("a guest that was started meanwhile", func(t *testing.T) {
		s := lost()
		s.observe(ctx, rpc.Event{}, false)
		if s.requestStop(ctx) {
			t.Fatal("the guest counts as not started while that is unknown")
		}
		s.update(ctx, connection{found: true, state: rpc.StateRunning})
		if !s.guest.started || s.kill == nil {
			t.Errorf("the guest is not stopped: %+v", s.guest)
		}
	})
	t.Run("no guest", func(t *testing.T) {
		s := lost()
		s.observe(ctx, rpc.Event{}, false)
		s.requestStop(ctx)
		s.update(ctx, connection{})
		s.client = &rpc.Client{}
		if s.startTimer == nil || !s.isUnstarted() {
			t.Error("the launcher would not end")
		}
	})
	t.Run("a connection lost after the request", func(t *testing.T) {
		s := lost()
		if s.requestStop(ctx) || s.startTimer == nil {
			t.Fatal("a start in progress is not awaited")
		}
		s.observe(ctx, rpc.Event{}, false)
		if s.startTimer != nil || s.isUnstarted() {
			t.Error("the guest counts as not started while that is unknown")
		}
	})
	t.Run("before the first connection", func(t *testing.T) {
		if s := newSupervisor(Options{Namespace: "ns", Name: "vm"}, nil, nil, nil); !s.requestStop(ctx) {
			t.Error("the launcher waits for a guest that the agent cannot have started")
		}
	})
}
