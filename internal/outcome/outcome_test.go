// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package outcome

import (
	"context"
	"errors"
	"fmt"
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
	errConflict = fmt.Errorf("write: %w",
		apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, "a", errors.New("stale")))
	errOther = errors.New("broken")
)

// ending is a way in which a phase can end, and what follows from it alone.
type ending struct {
	name  string
	err   error
	after time.Duration
	// conflict reports whether the queue's delay grows without an error, reported whether an error is returned, and
	// failure whether the status reports it. logged is what is logged instead of an error.
	conflict, reported, failure bool
	logged                      string
}

func endings() []ending {
	return []ending{
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
		{name: "an error with a conflict", err: fmt.Errorf("%w: %w", errOther, errConflict), reported: true, failure: true},
	}
}

func TestEachPairOfOutcomes(t *testing.T) {
	for _, a := range endings() {
		for _, b := range endings() {
			t.Run(a.name+" and "+b.name, func(t *testing.T) {
				joined := errors.Join(errors.Join(a.err, nil), b.err)
				checkPair(t, joined, a, b)
				if joined != nil {
					checkPair(t, fmt.Errorf("all: %w", joined), a, b)
					checkPair(t, errors.Join(nil, fmt.Errorf("all: %w", joined)), a, b)
				}
			})
		}
	}
}

// checkPair checks what follows from an error in which two endings are joined.
func checkPair(t *testing.T, joined error, a, b ending) {
	t.Helper()
	var lines []string
	logger := funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{})
	// What a phase has requested on the way counts, too.
	res, err := Result(log.IntoContext(t.Context(), logger), joined, 0, time.Minute)
	if want := Sooner(time.Minute, Sooner(a.after, b.after)); res.RequeueAfter != want {
		t.Errorf("repeated after %s, want %s", res.RequeueAfter, want)
	}
	if grows := res.Requeue; grows != (a.conflict || b.conflict) { //nolint:staticcheck // see Result
		t.Errorf("the queue's delay grows: %t", grows)
	}
	if (err != nil) != (a.reported || b.reported) {
		t.Errorf("the error is %v", err)
	}
	failure := Failure(joined)
	if (failure != nil) != (a.failure || b.failure) {
		t.Errorf("the failure is %v", failure)
	}
	for _, e := range []ending{a, b} {
		if e.reported && !strings.Contains(fmt.Sprint(err), e.err.Error()) {
			t.Errorf("the error of %s is missing: %v", e.name, err)
		}
		if e.failure && !strings.Contains(fmt.Sprint(failure), e.err.Error()) {
			t.Errorf("the failure of %s is missing: %v", e.name, failure)
		}
		if e.logged != "" && !strings.Contains(strings.Join(lines, "\n"), e.logged) {
			t.Errorf("%s is not logged: %v", e.name, lines)
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
	both := fmt.Errorf("all: %w", errors.Join(errConflict, errConflict))
	if !IsConflict(both) || Failure(both) != nil || len(Split(both)) != 1 {
		t.Errorf("%v is no conflict", both)
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
		failed := errors.Is(tc.err, errOther)
		if result.RequeueAfter != tc.returned || queue.added[request] != tc.added || (err != nil) != failed {
			t.Errorf("%s: got %+v and %v, added %v", name, result, err, queue.added)
		}
	}
}
