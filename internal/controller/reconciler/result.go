// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package reconciler

import (
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
)

// ConflictRetry is the delay before the next reconciliation after a conflict, which gives the cache time to receive the other write.
const ConflictRetry = 50 * time.Millisecond

// Result returns the result of a reconciliation that failed with err or is to be repeated after a delay. A conflict is not reported as an
// error, because the next reconciliation starts from the API server's version.
func Result(err error, after time.Duration) (ctrl.Result, error) {
	if err == nil {
		return ctrl.Result{RequeueAfter: after}, nil
	}
	if apierrors.IsConflict(err) {
		return ctrl.Result{RequeueAfter: ConflictRetry}, nil
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
