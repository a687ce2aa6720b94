// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package outcome

import (
	"context"
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
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

var (
	errConflict = fmt.Errorf("write: %w", apierrors.NewConflict(schema.GroupResource{Resource: "virtualmachines"}, "vm", errors.New("stale")))
	errOther    = errors.New("broken")
)

// cases are the ways in which a phase can end, and what follows from each alone.
var cases = []struct {
	name  string
	err   error
	after time.Duration
	// conflict reports whether the queue's delay grows without an error, reported whether an error is returned, logged what is logged
	// instead, and failure whether the status reports it.
	conflict, reported, failure bool
	logged                      string
}{
	{name: "nothing"},
	{name: "a wait", err: &Wait{Reason: "a volume"}},
	{name: "a wait with its cause", err: fmt.Errorf("%w: %w", &Wait{Reason: "libvirtd"}, errOther)},
	{name: "a requeue", err: &Requeue{After: 3 * time.Second}, after: 3 * time.Second},
	{name: "a wrapped requeue", err: fmt.Errorf("scan: %w", &Requeue{After: 2 * time.Second}), after: 2 * time.Second},
	{name: "a conflict", err: errConflict, conflict: true},
	{name: "a terminal error", err: &Terminal{Reason: "Bad", Err: errors.New("no room")}, failure: true, logged: "no room"},
	{
		name: "a retry", err: &Retry{Reason: "Later", After: time.Second, Err: errors.New("refused")}, after: time.Second,
		failure: true, logged: "refused",
	},
	{name: "another error", err: fmt.Errorf("set: %w", errOther), reported: true, failure: true},
	{name: "an error with a second one", err: fmt.Errorf("%w: %w", errors.New("set"), errConflict), reported: true, failure: true},
}

func TestEachPairOfOutcomes(t *testing.T) {
	for _, a := range cases {
		for _, b := range cases {
			for name, joined := range map[string]error{
				"joined":                 errors.Join(errors.Join(a.err, nil), b.err),
				"joined and wrapped":     fmt.Errorf("all: %w", errors.Join(a.err, b.err)),
				"joined after a success": errors.Join(nil, fmt.Errorf("all: %w", errors.Join(a.err, b.err))),
			} {
				if a.err == nil && b.err == nil {
					joined = nil
				}
				t.Run(a.name+" and "+b.name+", "+name, func(t *testing.T) {
					var lines []string
					logger := funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{})
					// What a phase has asked for on the way counts, too.
					res, err := Result(log.IntoContext(t.Context(), logger), joined, 0, time.Minute)
					if want := Sooner(time.Minute, Sooner(a.after, b.after)); res.RequeueAfter != want {
						t.Errorf("repeated after %s, want %s", res.RequeueAfter, want)
					}
					if res.Requeue != (a.conflict || b.conflict) { //nolint:staticcheck // see Result
						t.Errorf("the queue's delay grows: %t", res.Requeue) //nolint:staticcheck // see Result
					}
					if (err != nil) != (a.reported || b.reported) {
						t.Errorf("the error is %v", err)
					}
					failure := Failure(joined)
					if (failure != nil) != (a.failure || b.failure) {
						t.Errorf("the failure is %v", failure)
					}
					for _, c := range cases {
						if c.name != a.name && c.name != b.name || c.err == nil {
							continue
						}
						if c.reported && !strings.Contains(err.Error(), c.err.Error()) {
							t.Errorf("the error of %s is missing: %v", c.name, err)
						}
						if c.failure && !strings.Contains(failure.Error(), c.err.Error()) {
							t.Errorf("the failure of %s is missing: %v", c.name, failure)
						}
						if c.logged != "" && !slices.ContainsFunc(lines, func(line string) bool { return strings.Contains(line, c.logged) }) {
							t.Errorf("%s is not logged: %v", c.name, lines)
						}
					}
				})
			}
		}
	}
}

func TestTextOfWrappedJoins(t *testing.T) {
	second := errors.New("second")
	for _, tc := range []struct {
		err  error
		want string
	}{
		{fmt.Errorf("all: %w", errors.Join(errOther, second)), "all: broken\nsecond"},
		{fmt.Errorf("all: %w", errors.Join(errConflict, second)), "second"},
		{errors.Join(errors.Join(errConflict, errOther), errors.Join(second, &Requeue{After: 1})), "broken\nsecond"},
		{&Terminal{Reason: "Bad", Err: errors.Join(errOther, second)}, "broken\nsecond"},
	} {
		if got := Failure(tc.err); got == nil || got.Error() != tc.want {
			t.Errorf("%q: got %v, want %q", tc.err, got, tc.want)
		}
	}
	if err := fmt.Errorf("all: %w", errors.Join(errConflict, errConflict)); !IsConflict(err) || Failure(err) != nil || len(Split(err)) != 1 {
		t.Errorf("%v is no conflict", err)
	}
}

func TestMap(t *testing.T) {
	mark := func(err error) error { return fmt.Errorf("x %w", err) }
	if got := Map(errors.Join(errOther, &Wait{Reason: "it"}), mark).Error(); got != "x broken\nx waiting for it" {
		t.Errorf("got %q", got)
	}
	if got := Map(errOther, func(err error) error { return err }); got != errOther { //nolint:errorlint // the same error
		t.Errorf("got %v", got)
	}
	if got := Map(nil, mark); got != nil {
		t.Errorf("got %v for no error", got)
	}
}

// recorded is a queue that notes the delays of what is added.
type recorded struct {
	workqueue.TypedRateLimitingInterface[ctrl.Request]
	added map[ctrl.Request]time.Duration
}

func (r *recorded) AddAfter(request ctrl.Request, after time.Duration) { r.added[request] = after }

func TestDelayIsKeptBesideAnError(t *testing.T) {
	request := ctrl.Request{NamespacedName: types.NamespacedName{Namespace: "ns", Name: "vm"}}
	for name, tc := range map[string]struct {
		err error
		// returned is the delay that controller-runtime gets, and added that of the queue.
		returned, added time.Duration
	}{
		"success":  {nil, time.Minute, 0},
		"conflict": {errConflict, 0, time.Minute},
		"error":    {errOther, 0, time.Minute},
		"both":     {errors.Join(errOther, errConflict, &Requeue{After: time.Second}), 0, time.Second},
	} {
		queue := &recorded{added: map[ctrl.Request]time.Duration{}}
		d := &delays{Reconciler: reconcile.Func(func(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
			return Result(ctx, tc.err, time.Minute)
		})}
		if err := d.Start(t.Context(), queue); err != nil {
			t.Fatal(err)
		}
		result, err := d.Reconcile(t.Context(), request)
		if result.RequeueAfter != tc.returned || queue.added[request] != tc.added || (err != nil) != errors.Is(tc.err, errOther) {
			t.Errorf("%s: got %+v and %v, added %v", name, result, err, queue.added)
		}
	}
}
