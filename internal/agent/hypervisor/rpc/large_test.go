// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
)

func TestOnlyExpectedCallHasLargeResponse(t *testing.T) {
	responses := hypervisor.NewResponseBudget()
	ctx, end := responses.StartConversation(t.Context(), "ns")
	defer end()
	r, client, launcher := startRelay(t, func() {})
	c := &Conn{relay: r}
	long := message(procLookup, typeReply, lookupSerial, hypervisor.SmallResponse+1)
	err := c.large(ctx, func() error {
		pass(t, client, launcher, message(procLookup, typeCall, lookupSerial, 40))
		pass(t, launcher, client, long)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	// Its memory is missing in the budget of the namespace.
	waiting, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := responses.Acquire(waiting, "ns", hypervisor.ResponseBudgetPerNamespace); !errors.Is(err,
		context.Canceled) {
		t.Errorf("the response reserved no memory: %v", err)
	}
	pass(t, client, launcher, message(procLookup, typeCall, lookupSerial, 40))
	if _, err := launcher.Write(long[:28]); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(client); err != nil || len(got) != 0 {
		t.Errorf("the client got %d bytes (%v)", len(got), err)
	}
	if <-r.done(); !errors.Is(r.err(), errMessage) {
		t.Errorf("closed because of %v", r.err())
	}
}

func TestFirstConnectionsAreSpread(t *testing.T) {
	half := func(d time.Duration) time.Duration { return d / 2 }
	for _, tc := range []struct{ over, since, want time.Duration }{
		{4 * time.Second, 0, 2 * time.Second},
		{4 * time.Second, 3 * time.Second, 2 * time.Second},
		{4 * time.Second, 4 * time.Second, 0},
		{0, 0, 0},
	} {
		if got := spread(tc.over, tc.since, half); got != tc.want {
			t.Errorf("%+v: got %s", tc, got)
		}
	}
}
