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

	"github.com/vireo-project/vireo/internal/brokerapi"
)

// Wait ends a reconciliation until an event triggers the next one. It is not a failure.
type Wait struct { //nolint:errname // it ends the phases as an error does
	// Reason is what the reconciliation waits for.
	Reason string
}

// Error returns what the reconciliation waits for.
func (w *Wait) Error() string { return "waiting for " + w.Reason }

// Requeue ends a reconciliation that must be repeated after a delay even if no event arrives.
type Requeue struct { //nolint:errname // it ends the phases as an error does
	// After is the delay.
	After time.Duration
}

// Error returns when the reconciliation is repeated.
func (r *Requeue) Error() string { return fmt.Sprintf("continuing after %s", r.After) }

// Terminal is a failure that a retry does not fix: the VMI's spec cannot be satisfied.
type Terminal struct { //nolint:errname // it ends the phases as an error does
	// Reason is the condition's reason.
	Reason string
	// Err is the cause.
	Err error
}

// Error returns the message of the cause.
func (t *Terminal) Error() string { return t.Err.Error() }

// Unwrap returns the cause.
func (t *Terminal) Unwrap() error { return t.Err }

// Retry is a failure whose cause may go away without a change of the VMI and without an event.
type Retry struct { //nolint:errname // it ends the phases as an error does
	// Reason is the condition's reason.
	Reason string
	// After is the delay before the retry.
	After time.Duration
	// Err is the cause.
	Err error
}

// Error returns the message of the cause.
func (r *Retry) Error() string { return r.Err.Error() }

// Unwrap returns the cause.
func (r *Retry) Unwrap() error { return r.Err }

// brokerRetry is the delay before an attempt to reach the broker again. An event triggers a reconciliation earlier if the broker was
// restarted.
const brokerRetry = 5 * time.Second

// fromBroker makes an error about a broker that does not respond or is busy a Retry. Also one about a second connection to libvirtd, which no event follows: the
// first one remains. But without a first one, the connection is made again anyway.
func fromBroker(phaseErr error) error {
	var connecting *unreachable
	later := errors.Is(phaseErr, brokerapi.ErrUnreachable) || brokerapi.CodeOf(phaseErr) == brokerapi.CodeBusy
	if !later || errors.As(phaseErr, &connecting) {
		return phaseErr
	}
	// Only the message: the error may be a Wait too.
	return &Retry{Reason: reasonSynchronizing, After: brokerRetry, Err: errors.New(phaseErr.Error())}
}

// isFailure reports whether the error of a phase means that the spec could not be satisfied.
func isFailure(phaseErr error) bool {
	var wait *Wait
	var requeue *Requeue
	return phaseErr != nil && !errors.As(phaseErr, &wait) && !errors.As(phaseErr, &requeue)
}

// result converts the error of a phase to a result for controller-runtime. Nothing else does.
func result(ctx context.Context, phaseErr error) (ctrl.Result, error) {
	var wait *Wait
	var requeue *Requeue
	var terminal *Terminal
	var retry *Retry
	switch {
	case phaseErr == nil:
		return ctrl.Result{}, nil
	case errors.As(phaseErr, &wait):
		log.FromContext(ctx).V(4).Info("Waiting", "for", wait.Reason)
		return ctrl.Result{}, nil
	case errors.As(phaseErr, &requeue):
		return ctrl.Result{RequeueAfter: requeue.After}, nil
	case apierrors.IsConflict(phaseErr):
		// The cache was behind. The retry is for the case that the event that updates it has already arrived.
		return ctrl.Result{RequeueAfter: staleCacheDelay}, nil
	case errors.As(phaseErr, &terminal):
		log.FromContext(ctx).Info("The VMI cannot run with its current spec", "reason", terminal.Reason, "error", terminal.Error())
		return ctrl.Result{}, nil
	case errors.As(phaseErr, &retry):
		log.FromContext(ctx).Info("The VMI cannot run yet", "reason", retry.Reason, "error", retry.Error(), "retryIn", retry.After.String())
		return ctrl.Result{RequeueAfter: retry.After}, nil
	default:
		return ctrl.Result{}, phaseErr
	}
}

// staleCacheDelay is about the latency of a watch event.
const staleCacheDelay = 50 * time.Millisecond
