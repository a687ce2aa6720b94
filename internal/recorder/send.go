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

// serve sends one event of a namespace after the other's. The work queue gives a namespace to one sender at a time.
func (r *Recorder) serve(ctx context.Context) {
	for {
		namespace, end := r.turns.Get()
		if end {
			return
		}
		if ctx.Err() == nil {
			r.turn(ctx, namespace)
		}
		r.turns.Done(namespace)
	}
}

// turn sends the oldest event of a namespace. One that does not get through stays the oldest, and keeps its name: if it did arrive
// after all, the API server says that it exists.
func (r *Recorder) turn(ctx context.Context, namespace string) {
	head := r.queue.head(namespace)
	err := r.send(ctx, head)
	switch {
	case err == nil:
	case !isTransient(err):
		r.drop(dropRejected, head.recorded, err)
	case r.turns.NumRequeues(namespace)+1 < maxTries:
		r.turns.AddRateLimited(namespace)
		return
	default:
		r.drop(dropUnreachable, head.recorded, err)
	}
	r.turns.Forget(namespace)
	if r.queue.pop(namespace) {
		r.turns.Add(namespace)
	}
}

// send creates the event, or counts up the one that it repeats.
func (r *Recorder) send(ctx context.Context, p *pending) error {
	if p.result == nil {
		event := *p.recorded
		result, err := r.correlator.EventCorrelate(&event)
		if err != nil {
			r.log.Error(err, "Cannot count up the event that this one repeats, creating another", "reason", event.Reason)
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
		// It has expired.
	}
	event.ResourceVersion = ""
	sent, err := r.sink.CreateWithEventNamespaceWithContext(ctx, event)
	if apierrors.IsAlreadyExists(err) || isNamespaceGone(err) {
		return nil
	}
	return r.sent(sent, err)
}

// sent remembers what the API server has, so that the next event of this kind counts it up.
func (r *Recorder) sent(event *corev1.Event, err error) error {
	if err == nil {
		r.correlator.UpdateState(event)
	}
	return err
}

// isNamespaceGone tells whether the event's namespace is gone or being deleted: nobody reads its events.
func isNamespaceGone(err error) bool {
	return apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) || apierrors.IsNotFound(err)
}

// isTransient tells whether an error may not come again for the same request. An answer of the API server does, unless it says that it has
// too much to do.
func isTransient(err error) bool {
	var malformed *rest.RequestConstructionError
	if errors.As(err, &malformed) {
		return false
	}
	var answer apierrors.APIStatus
	if !errors.As(err, &answer) {
		return true
	}
	return apierrors.IsTooManyRequests(err) || apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err) ||
		apierrors.IsServiceUnavailable(err) || apierrors.IsInternalError(err) || apierrors.IsUnexpectedServerError(err)
}
