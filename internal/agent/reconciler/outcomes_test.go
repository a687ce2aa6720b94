// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package reconciler

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
)

// outcomeCase is one way in which a phase can end.
type outcomeCase struct {
	name  string
	err   error
	after time.Duration
	// fails reports whether the reconciliation has failed, and logged what is logged about it otherwise.
	fails  bool
	logged string
	// reason is that of the condition, or empty if it is no failure.
	reason string
}

func outcomeCases() []outcomeCase {
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "virtualmachineinstances"}, "vm", errors.New("stale"))
	return []outcomeCase{
		{name: "nothing"},
		{name: "a wait", err: &Wait{Reason: "a volume"}},
		{name: "a wait for the connection", err: fromConnection(fmt.Errorf("read: %w", hypervisor.ErrUnreachable))},
		{name: "a requeue", err: &Requeue{After: 3 * time.Second}, after: 3 * time.Second},
		{name: "a conflict", err: fmt.Errorf("write: %w", conflict), after: staleCacheDelay, reason: reasonSynchronizing},
		{name: "a terminal error", err: &Terminal{Reason: "Bad", Err: errors.New("no room")}, logged: "no room", reason: "Bad"},
		{
			name: "a retry", err: &Retry{Reason: "Later", After: time.Second, Err: errors.New("refused")}, after: time.Second,
			logged: "refused", reason: "Later",
		},
		{name: "another error", err: fmt.Errorf("%w: %w", errors.New("set"), errors.New("broken")), fails: true, reason: reasonSynchronizing},
	}
}

func TestEachPairOfOutcomes(t *testing.T) {
	for _, a := range outcomeCases() {
		for _, b := range outcomeCases() {
			t.Run(a.name+" and "+b.name, func(t *testing.T) {
				var lines []string
				logger := funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{})
				joined := errors.Join(errors.Join(a.err, nil), b.err)
				res, err := result(log.IntoContext(t.Context(), logger), joined)
				if want := sooner(a.after, b.after); res.RequeueAfter != want {
					t.Errorf("repeated after %s, want %s", res.RequeueAfter, want)
				}
				if (err != nil) != (a.fails || b.fails) {
					t.Errorf("the error is %v", err)
				}
				for _, c := range []outcomeCase{a, b} {
					if c.fails && !errors.Is(err, outcomes(c.err)[0]) && !strings.Contains(err.Error(), c.err.Error()) {
						t.Errorf("the error of %s is missing: %v", c.name, err)
					}
					if c.logged != "" && !slices.ContainsFunc(lines, func(line string) bool { return strings.Contains(line, c.logged) }) {
						t.Errorf("%s is not logged: %v", c.name, lines)
					}
				}
				checkCondition(t, joined, a, b)
			})
		}
	}
}

// checkCondition checks that the condition reports each failure, and has the reason of the one that needs a change of the spec.
func checkCondition(t *testing.T, joined error, a, b outcomeCase) {
	t.Helper()
	if isFailure(joined) != (a.reason+b.reason != "") {
		t.Errorf("it is a failure: %t", isFailure(joined))
	}
	reason, message := describeFailures(failures(joined))
	want := reasonSynchronizing
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

func TestConflictHidesNoErrorThatIsWrappedWithIt(t *testing.T) {
	conflict := apierrors.NewConflict(schema.GroupResource{}, "vm", errors.New("stale"))
	if _, err := result(t.Context(), fmt.Errorf("transfer: %w", errors.Join(conflict, errors.New("no response")))); err == nil {
		t.Error("the other error is lost")
	}
	if _, err := result(t.Context(), fmt.Errorf("transfer: %w", errors.Join(conflict, conflict))); err != nil {
		t.Errorf("two conflicts are an error: %v", err)
	}
}

// delays is a work queue that notes the delays of what is added.
type delays struct {
	queue
	added map[reconcile.Request]time.Duration
}

func (d *delays) AddAfter(item reconcile.Request, after time.Duration) { d.added[item] = after }

func TestDelayIsKeptBesideAnError(t *testing.T) {
	recorded := &delays{added: map[reconcile.Request]time.Duration{}}
	r := &Reconciler{triggers: NewTriggers()}
	if err := r.triggers.Start(t.Context(), recorded); err != nil {
		t.Fatal(err)
	}
	req := ctrl.Request{NamespacedName: types.NamespacedName{Namespace: "ns", Name: "vm"}}
	failed := errors.New("failed")
	// controller-runtime warns about a result with both.
	if res, err := r.keepDelay(req, ctrl.Result{RequeueAfter: time.Second}, failed); res.RequeueAfter != 0 || !errors.Is(err, failed) {
		t.Errorf("got %v and %v", res, err)
	}
	if recorded.added[req] != time.Second {
		t.Errorf("added %v", recorded.added)
	}
	if res, err := r.keepDelay(req, ctrl.Result{RequeueAfter: time.Minute}, nil); res.RequeueAfter != time.Minute || err != nil {
		t.Errorf("without an error, got %v and %v", res, err)
	}
	if len(recorded.added) != 1 || recorded.added[req] != time.Second {
		t.Errorf("without an error, added %v", recorded.added)
	}
}
