// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package reconciler

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// Wait ends a reconcile because something that is watched must happen first. It is no failure.
type Wait struct { //nolint:errname // an outcome that happens to travel as an error
	// Reason says what is waited for.
	Reason string
}

// Error says what is waited for.
func (w *Wait) Error() string { return "waiting for " + w.Reason }

// Requeue ends a reconcile that must go on after a while although nothing may happen until then.
type Requeue struct { //nolint:errname // an outcome that happens to travel as an error
	// After is when.
	After time.Duration
}

// Error says when the reconcile goes on.
func (r *Requeue) Error() string { return fmt.Sprintf("continuing after %s", r.After) }

// Terminal is a failure that trying again does not mend: the VMI's spec asks for what cannot be done.
type Terminal struct { //nolint:errname // an outcome that happens to travel as an error
	// Reason is the condition's reason.
	Reason string
	// Err says what is wrong.
	Err error
}

// Error says what is wrong.
func (t *Terminal) Error() string { return t.Err.Error() }

// Unwrap returns what is wrong.
func (t *Terminal) Unwrap() error { return t.Err }

// Retry is a failure that may mend without a change of the VMI, and of which no event tells when it does.
type Retry struct { //nolint:errname // an outcome that happens to travel as an error
	// Reason is the condition's reason.
	Reason string
	// After is when to look again.
	After time.Duration
	// Err says what is wrong.
	Err error
}

// Error says what is wrong.
func (r *Retry) Error() string { return r.Err.Error() }

// Unwrap returns what is wrong.
func (r *Retry) Unwrap() error { return r.Err }

// isFailure says that an outcome means that the spec could not be followed.
func isFailure(outcome error) bool {
	var wait *Wait
	var requeue *Requeue
	return outcome != nil && !errors.As(outcome, &wait) && !errors.As(outcome, &requeue)
}

// result is the one place where outcomes become what controller-runtime wants.
func result(ctx context.Context, outcome error) (ctrl.Result, error) {
	var wait *Wait
	var requeue *Requeue
	var terminal *Terminal
	var retry *Retry
	switch {
	case outcome == nil:
		return ctrl.Result{}, nil
	case errors.As(outcome, &wait):
		log.FromContext(ctx).V(4).Info("Waiting", "for", wait.Reason)
		return ctrl.Result{}, nil
	case errors.As(outcome, &requeue):
		return ctrl.Result{RequeueAfter: requeue.After}, nil
	case apierrors.IsConflict(outcome):
		// The cache is behind. The event that brings it up to date comes by itself, this is for when it came already.
		return ctrl.Result{RequeueAfter: staleCacheDelay}, nil
	case errors.As(outcome, &terminal):
		log.FromContext(ctx).Info("The VMI cannot be run as it is", "reason", terminal.Reason, "error", terminal.Error())
		return ctrl.Result{}, nil
	case errors.As(outcome, &retry):
		log.FromContext(ctx).Info("The VMI cannot be run yet", "reason", retry.Reason, "error", retry.Error(), "retryIn", retry.After.String())
		return ctrl.Result{RequeueAfter: retry.After}, nil
	default:
		return ctrl.Result{}, outcome
	}
}

// staleCacheDelay is about as long as a watch event is under way.
const staleCacheDelay = 50 * time.Millisecond
