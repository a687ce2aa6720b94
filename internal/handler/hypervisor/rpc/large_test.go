// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/vireo-project/vireo/internal/handler/hypervisor"
)

func TestOnlyACallThatIsExpectedToHasAnAnswerThatIsNotSmall(t *testing.T) {
	answers := hypervisor.NewAnswers()
	ctx, end := answers.Begin(t.Context(), "ns")
	defer end()
	r, client, launcher := startRelay(t, func() {})
	c := &Conn{relay: r}
	long := message(procLookup, typeReply, lookupSerial, hypervisor.SmallAnswer+1)
	err := c.large(ctx, func() error {
		pass(t, client, launcher, message(procLookup, typeCall, lookupSerial, 40))
		pass(t, launcher, client, long)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	// It has taken its memory: of what one namespace may have, that much is missing.
	waiting, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := answers.Take(waiting, "ns", hypervisor.AnswersPerNamespace); !errors.Is(err, context.Canceled) {
		t.Errorf("the answer took no memory: %v", err)
	}
	pass(t, client, launcher, message(procLookup, typeCall, lookupSerial, 40))
	if _, err := launcher.Write(long[:28]); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(client); err != nil || len(got) != 0 {
		t.Errorf("the client got %d bytes (%v)", len(got), err)
	}
	if <-r.done(); !errors.Is(r.err(), errMessage) {
		t.Errorf("cut because of %v", r.err())
	}
}

func TestTheFirstConnectionsAreSpread(t *testing.T) {
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
