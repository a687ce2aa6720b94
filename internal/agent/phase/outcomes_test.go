// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package phase

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/outcome"
)

// outcomeCase is one way in which a phase can end.
type outcomeCase struct {
	name string
	err  error
	// reason is that of the condition, or empty if it is no failure.
	reason string
}

func outcomeCases() []outcomeCase {
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "virtualmachineinstances"}, "vm", errors.New("stale"))
	return []outcomeCase{
		{name: "nothing"},
		{name: "a wait", err: &outcome.Wait{Reason: "a volume"}},
		{name: "a wait for the connection", err: FromConnection(fmt.Errorf("read: %w", hypervisor.ErrUnreachable))},
		{name: "a requeue", err: &outcome.Requeue{After: 3 * time.Second}},
		{name: "a conflict", err: fmt.Errorf("write: %w", conflict), reason: ReasonSynchronizing},
		{name: "a terminal error", err: &outcome.Terminal{Reason: "Bad", Err: errors.New("no room")}, reason: "Bad"},
		{name: "a retry", err: &outcome.Retry{Reason: "Later", After: time.Second, Err: errors.New("refused")}, reason: "Later"},
		{name: "another error", err: fmt.Errorf("%w: %w", errors.New("set"), errors.New("broken")), reason: ReasonSynchronizing},
	}
}

// The condition reports each failure, and has the reason of the one that needs a change of the spec.
func TestConditionOfEachPairOfOutcomes(t *testing.T) {
	for _, a := range outcomeCases() {
		for _, b := range outcomeCases() {
			t.Run(a.name+" and "+b.name, func(t *testing.T) {
				checkCondition(t, errors.Join(errors.Join(a.err, nil), b.err), a, b)
			})
		}
	}
}

func checkCondition(t *testing.T, joined error, a, b outcomeCase) {
	t.Helper()
	if IsFailure(joined) != (a.reason+b.reason != "") {
		t.Errorf("it is a failure: %t", IsFailure(joined))
	}
	reason, message := DescribeFailures(Failures(joined))
	want := ReasonSynchronizing
	for _, preferred := range []string{"Later", "Bad"} {
		if a.reason == preferred || b.reason == preferred {
			want = preferred
		}
	}
	if reason != want {
		t.Errorf("the reason is %s, want %s", reason, want)
	}
	for _, c := range []outcomeCase{a, b} {
		if c.reason != "" && !strings.Contains(message, c.err.Error()) {
			t.Errorf("the message %q does not contain that of %s", message, c.name)
		}
	}
}
