// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package kit

import (
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
)

// ErrBusy is the error of a reconciliation that waits for another one of its namespace. It is repeated after BusyRetry, and takes no worker
// meanwhile.
var ErrBusy = errors.New("another reconciliation of the namespace does the same")

// BusyRetry is the delay after ErrBusy.
const BusyRetry = 500 * time.Millisecond

// Result returns the result of a reconciliation that failed with err or is to be repeated after a delay. A conflict is not reported as an
// error, because the next reconciliation starts from the API server's version; nor is ErrBusy. If they are joined with other errors, those
// are reported.
func Result(err error, after time.Duration) (ctrl.Result, error) {
	result := ctrl.Result{RequeueAfter: after}
	switch {
	case Failure(err) != nil:
		return ctrl.Result{}, Failure(err)
	case apierrors.IsConflict(err):
		// The queue's delay grows as long as the conflicts last, while the cache has not received the other write.
		result = ctrl.Result{Requeue: true} //nolint:staticcheck // RequeueAfter would reset the queue's delay, and an error be logged.
	case err != nil:
		result.RequeueAfter = BusyRetry
	}
	return result, nil
}

// Failure returns what of an error is a failure: all but the conflicts, and ErrBusy, that are joined in it. It returns nil if there is
// nothing else.
func Failure(err error) error {
	if !apierrors.IsConflict(err) && !errors.Is(err, ErrBusy) {
		return err
	}
	var joined interface{ Unwrap() []error }
	if !errors.As(err, &joined) {
		return nil
	}
	errs := joined.Unwrap()
	failures := make([]error, 0, len(errs))
	for _, e := range errs {
		failures = append(failures, Failure(e))
	}
	return errors.Join(failures...)
}

// Now returns the time of a clock, or of the system's if the clock is nil.
func Now(c clock.PassiveClock) time.Time {
	if c == nil {
		c = clock.RealClock{}
	}
	return c.Now()
}
