// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package reconciler

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
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
	// verbosity is that of the log line about it.
	verbosity int
}

// Error returns the message of the cause.
func (r *Retry) Error() string { return r.Err.Error() }

// Unwrap returns the cause.
func (r *Retry) Unwrap() error { return r.Err }

// brokerRetry is the delay before an attempt to reach the broker again. An event triggers a reconciliation earlier if the broker was
// restarted.
const brokerRetry = 5 * time.Second

// fromBroker makes an error about a broker that does not respond or is busy a Retry. It also covers an error of an additional
// connection to libvirtd: while the first connection works, no event would trigger a retry.
func fromBroker(phaseErr error) error {
	return mapOutcomes(phaseErr, func(outcome error) error {
		var connecting *unreachable
		if !isBrokerAway(outcome) || errors.As(outcome, &connecting) {
			return outcome
		}
		// Only the message: the error may be a Wait too.
		return &Retry{Reason: reasonSynchronizing, After: brokerRetry, Err: errors.New(outcome.Error())}
	})
}

// isBrokerAway reports whether the broker does not respond or is busy.
func isBrokerAway(err error) bool {
	return errors.Is(err, brokerapi.ErrUnreachable) || brokerapi.CodeOf(err) == brokerapi.CodeBusy
}

// joinError is the type of errors that errors.Join returns. Other errors that wrap several are one outcome.
var joinError = reflect.TypeOf(errors.Join(errors.ErrUnsupported))

// outcomes returns the errors that a phase has joined: each is a Wait, Requeue, Terminal or Retry, or another failure.
func outcomes(phaseErr error) []error {
	if phaseErr == nil {
		return nil
	}
	joined, ok := phaseErr.(interface{ Unwrap() []error })
	if !ok || reflect.TypeOf(phaseErr) != joinError {
		return []error{phaseErr}
	}
	var all []error
	for _, err := range joined.Unwrap() {
		all = append(all, outcomes(err)...)
	}
	return all
}

// mapOutcomes applies a function to each outcome of a phase.
func mapOutcomes(phaseErr error, change func(error) error) error {
	all := outcomes(phaseErr)
	if len(all) == 1 {
		return change(all[0])
	}
	for i := range all {
		all[i] = change(all[i])
	}
	return errors.Join(all...)
}

// failures returns the outcomes of a phase that mean that the spec could not be satisfied.
func failures(phaseErr error) []error {
	return slices.DeleteFunc(outcomes(phaseErr), func(outcome error) bool {
		var wait *Wait
		var requeue *Requeue
		return errors.As(outcome, &wait) || errors.As(outcome, &requeue)
	})
}

// isFailure reports whether an outcome of a phase means that the spec could not be satisfied.
func isFailure(phaseErr error) bool { return len(failures(phaseErr)) > 0 }

// describeFailures returns the reason of the condition for failures, and their messages.
func describeFailures(failed []error) (reason, message string) {
	reason = reasonSynchronizing
	messages := make([]string, 0, len(failed))
	var terminal *Terminal
	var retry *Retry
	for _, err := range failed {
		switch {
		case terminal != nil:
		case errors.As(err, &terminal):
			reason = terminal.Reason
		case retry == nil && errors.As(err, &retry):
			reason = retry.Reason
		}
		messages = append(messages, err.Error())
	}
	return reason, strings.Join(messages, "; ")
}

// isConflict reports whether an error is a conflict and nothing else, also not joined with something else.
func isConflict(err error) bool {
	for e := err; e != nil; e = errors.Unwrap(e) {
		if joined := outcomes(e); len(joined) > 1 {
			return !slices.ContainsFunc(joined, func(err error) bool { return !isConflict(err) })
		}
	}
	return apierrors.IsConflict(err)
}

// sooner returns the shorter of two delays, of which 0 means never.
func sooner(a, b time.Duration) time.Duration {
	switch {
	case b <= 0:
		return max(a, 0)
	case a <= 0:
		return b
	default:
		return min(a, b)
	}
}

// result converts the outcomes of the phases to a result for controller-runtime. Nothing else does. The soonest retry counts, also
// beside an error, with which controller-runtime ignores it: see keepDelay.
func result(ctx context.Context, phaseErr error) (ctrl.Result, error) {
	var res ctrl.Result
	var failed []error
	logger := log.FromContext(ctx)
	for _, outcome := range outcomes(phaseErr) {
		var wait *Wait
		var requeue *Requeue
		var terminal *Terminal
		var retry *Retry
		var after time.Duration
		switch {
		case errors.As(outcome, &wait):
			logger.V(4).Info("Waiting", "for", wait.Reason)
		case errors.As(outcome, &requeue):
			after = requeue.After
		case isConflict(outcome):
			// The cache was behind. The retry is for the case that the event that updates it has already arrived.
			after = staleCacheDelay
		case errors.As(outcome, &terminal):
			logger.Info("The VMI cannot run with its current spec", "reason", terminal.Reason, "error", terminal.Error())
		case errors.As(outcome, &retry):
			logger.V(retry.verbosity).Info("The VMI cannot run yet",
				"reason", retry.Reason, "error", retry.Error(), "retryIn", retry.After.String())
			after = retry.After
		default:
			failed = append(failed, outcome)
		}
		res.RequeueAfter = sooner(res.RequeueAfter, after)
	}
	if len(failed) == 1 {
		return res, failed[0]
	}
	return res, errors.Join(failed...)
}

// keepDelay keeps the delay of a reconciliation that has failed. controller-runtime repeats it after a delay that grows up to
// maxRetry, and ignores that of the result.
func (r *Reconciler) keepDelay(req ctrl.Request, res ctrl.Result, err error) (ctrl.Result, error) {
	if err == nil {
		return res, nil
	}
	if res.RequeueAfter > 0 {
		r.triggers.enqueueAfter(req, res.RequeueAfter)
	}
	return ctrl.Result{}, err
}

// staleCacheDelay is about the latency of a watch event.
const staleCacheDelay = 50 * time.Millisecond
