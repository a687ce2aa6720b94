// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package recorder

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
)

// runSender processes namespaces until the work queue shuts down. The work queue gives a namespace to one sender at a
// time.
func (r *Recorder) runSender(ctx context.Context) {
	for {
		namespace, shutdown := r.namespaces.Get()
		if shutdown {
			return
		}
		if ctx.Err() == nil {
			r.sendNext(ctx, namespace)
		}
		r.namespaces.Done(namespace)
	}
}

// sendNext sends the oldest event of a namespace. After a transient error the event stays in the queue and keeps its
// name: if the failed attempt has created it nevertheless, the next one gets AlreadyExists.
func (r *Recorder) sendNext(ctx context.Context, namespace string) {
	head := r.queue.head(namespace)
	err := r.send(ctx, head)
	switch {
	case err == nil:
	case !isTransient(err):
		r.drop(dropRejected, head.recorded, err)
	case r.namespaces.NumRequeues(namespace)+1 < maxAttempts:
		r.namespaces.AddRateLimited(namespace)
		return
	default:
		r.drop(dropUnreachable, head.recorded, err)
	}
	r.namespaces.Forget(namespace)
	if r.queue.pop(namespace) {
		r.namespaces.Add(namespace)
	}
}

// send creates the event, or increments the count of the earlier event that it repeats.
func (r *Recorder) send(ctx context.Context, p *pending) error {
	if p.result == nil {
		event := *p.recorded
		result, err := r.correlator.EventCorrelate(&event)
		if err != nil {
			r.log.Error(err, "Cannot correlate an event, creating a new one", "reason", event.Reason)
			result = &record.EventCorrelateResult{Event: &event}
		}
		p.result = result
	}
	if p.result.Skip {
		r.drop(dropRate, p.recorded, nil)
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	event := p.result.Event
	if event.Count > 1 {
		sent, err := r.sink.PatchWithEventNamespaceWithContext(ctx, event, p.result.Patch)
		if !apierrors.IsNotFound(err) {
			return r.sent(sent, err)
		}
		// The earlier event has expired.
	}
	event.ResourceVersion = ""
	sent, err := r.sink.CreateWithEventNamespaceWithContext(ctx, event)
	if apierrors.IsAlreadyExists(err) || isNamespaceGone(err) {
		return nil
	}
	return r.sent(sent, err)
}

// sent records the stored event in the correlator, so that the next equal event increments its count.
func (r *Recorder) sent(event *corev1.Event, err error) error {
	if err == nil {
		r.correlator.UpdateState(event)
	}
	return err
}

// isNamespaceGone reports whether the event's namespace is deleted or being deleted, in which case the event is not
// needed.
func isNamespaceGone(err error) bool {
	return apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) || apierrors.IsNotFound(err)
}

// isTransient reports whether the same request may succeed later. An error response of the API server is permanent,
// unless it is about overload, a timeout or an internal error.
func isTransient(err error) bool {
	var malformed *rest.RequestConstructionError
	if errors.As(err, &malformed) {
		return false
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return true
	}
	return apierrors.IsTooManyRequests(err) || apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err) ||
		apierrors.IsServiceUnavailable(err) || apierrors.IsInternalError(err) || apierrors.IsUnexpectedServerError(err)
}
