// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package reconciler

import (
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
)

// ConflictRetry is the delay before the next reconciliation after a conflict, which gives the cache time to receive the other write.
const ConflictRetry = 50 * time.Millisecond

// ErrBusy is the error of a reconciliation that waits for another one of its namespace. It is repeated after BusyRetry, and takes no worker
// meanwhile.
var ErrBusy = errors.New("another reconciliation of the namespace does the same")

// BusyRetry is the delay after ErrBusy.
const BusyRetry = 500 * time.Millisecond

// Result returns the result of a reconciliation that failed with err or is to be repeated after a delay. A conflict is not reported as an
// error, because the next reconciliation starts from the API server's version. Nor is ErrBusy.
func Result(err error, after time.Duration) (ctrl.Result, error) {
	if err == nil {
		return ctrl.Result{RequeueAfter: after}, nil
	}
	if apierrors.IsConflict(err) {
		return ctrl.Result{RequeueAfter: ConflictRetry}, nil
	}
	if errors.Is(err, ErrBusy) {
		return ctrl.Result{RequeueAfter: BusyRetry}, nil
	}
	return ctrl.Result{}, err
}

// Now returns the time of a clock, or of the system's if the clock is nil.
func Now(c clock.PassiveClock) time.Time {
	if c == nil {
		c = clock.RealClock{}
	}
	return c.Now()
}
