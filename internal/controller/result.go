// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package controller

import (
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
)

// conflictRetry is when to reconcile again after somebody else wrote first. Their write wakes us as well; this is for a
// cache that shows it late.
const conflictRetry = 50 * time.Millisecond

// result turns how a reconciliation ended into what the queue understands. A conflict is no error: the next reconciliation starts from
// what the API server has.
func result(err error, after time.Duration) (ctrl.Result, error) {
	if err == nil {
		return ctrl.Result{RequeueAfter: after}, nil
	}
	if apierrors.IsConflict(err) {
		return ctrl.Result{RequeueAfter: conflictRetry}, nil
	}
	return ctrl.Result{}, err
}

func now(c clock.PassiveClock) time.Time {
	if c == nil {
		c = clock.RealClock{}
	}
	return c.Now()
}
