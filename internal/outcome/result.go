// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package outcome

import (
	"context"
	"errors"
	"time"

	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Result converts the outcomes of a reconciliation's phases, and the delays that they have requested beside them, to a
// result for a controller that Complete has made. Nothing else does. The soonest delay counts, of which 0 means none,
// also beside an error.
func Result(ctx context.Context, err error, delays ...time.Duration) (ctrl.Result, error) {
	var result ctrl.Result
	var failed []error
	for _, delay := range delays {
		result.RequeueAfter = Sooner(result.RequeueAfter, delay)
	}
	logger := log.FromContext(ctx)
	for _, outcome := range Split(err) {
		switch kindOf(outcome) {
		case wait:
			logger.V(4).Info("The reconciliation waits", "outcome", outcome.Error())
		case requeue:
			var after *Requeue
			errors.As(outcome, &after)
			result.RequeueAfter = Sooner(result.RequeueAfter, after.After)
		case conflict:
			// The cache was behind. The delay grows as long as the conflicts last, until the cache has received the
			// other write.
			result.Requeue = true //nolint:staticcheck // RequeueAfter would reset the queue's delay, and an error be logged.
		case terminal:
			var failure *Terminal
			errors.As(outcome, &failure)
			logger.Info("The spec cannot be satisfied", "reason", failure.Reason, "error", outcome.Error())
		case retry:
			var failure *Retry
			errors.As(outcome, &failure)
			logger.V(failure.Verbosity).Info("The spec cannot be satisfied yet",
				"reason", failure.Reason, "error", outcome.Error(), "retryIn", failure.After.String())
			result.RequeueAfter = Sooner(result.RequeueAfter, failure.After)
		default:
			failed = append(failed, outcome)
		}
	}
	return result, join(failed)
}

// Complete completes a controller whose reconciler returns the results of Result.
func Complete(builder *ctrl.Builder, reconciler reconcile.Reconciler) error {
	d := &delays{Reconciler: reconciler}
	return builder.WatchesRawSource(d).Complete(d)
}

// delays is a reconciler whose delays count also beside an error or a conflict: controller-runtime repeats such a
// reconciliation after its queue's delay only, which may be longer. It is a source of the controller, which gives it
// the queue.
type delays struct {
	reconcile.Reconciler
	queue workqueue.TypedRateLimitingInterface[ctrl.Request]
}

// Start implements source.Source. It is called before the first reconciliation.
func (d *delays) Start(_ context.Context, queue workqueue.TypedRateLimitingInterface[ctrl.Request]) error {
	d.queue = queue
	return nil
}

// Reconcile implements reconcile.Reconciler. Of two repetitions of a request, the queue keeps the sooner one.
func (d *delays) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	result, err := d.Reconciler.Reconcile(ctx, request)
	backsOff := err != nil || result.Requeue //nolint:staticcheck // see Result
	if backsOff && result.RequeueAfter > 0 {
		d.queue.AddAfter(request, result.RequeueAfter)
		result.RequeueAfter = 0 // controller-runtime warns about a result with both.
	}
	return result, err
}
