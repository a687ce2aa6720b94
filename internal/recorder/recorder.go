// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package recorder records events that reach the API server in the order in which they were recorded. See docs/adr/0061.
package recorder

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
)

// Recorder records core/v1 events, as KubeVirt does, one after the other. It is a Runnable that stops sending when the manager stops.
type Recorder struct {
	// EventRecorder takes the events. They have neither the related object nor the action that its method asks for: what these say
	// has to be in the note.
	events.EventRecorder

	broadcaster record.EventBroadcaster
	scheme      *runtime.Scheme
}

// Add makes a Recorder for a component and adds it to a manager.
func Add(mgr ctrl.Manager, source corev1.EventSource) (*Recorder, error) {
	api, err := typedcorev1.NewForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())
	if err != nil {
		return nil, fmt.Errorf("make a client for events: %w", err)
	}
	r := New(&typedcorev1.EventSinkImpl{Interface: api.Events("")}, mgr.GetScheme(), source)
	return r, mgr.Add(r)
}

// New makes a Recorder for a component that begins to send at once. The scheme has the kinds of the objects that events are about.
func New(sink record.EventSink, scheme *runtime.Scheme, source corev1.EventSource) *Recorder {
	broadcaster := record.NewBroadcaster()
	broadcaster.StartRecordingToSink(sink)
	r := &Recorder{broadcaster: broadcaster, scheme: scheme}
	r.EventRecorder = r.As(source)
	return r
}

// As records for another component, in the same order.
func (r *Recorder) As(source corev1.EventSource) events.EventRecorder {
	return record.NewEventRecorderAdapter(r.broadcaster.NewRecorder(r.scheme, source))
}

// Start waits until the context ends and then sends no more.
func (r *Recorder) Start(ctx context.Context) error {
	<-ctx.Done()
	r.broadcaster.Shutdown()
	return nil
}

// NeedLeaderElection says that events are sent by every process that records any.
func (r *Recorder) NeedLeaderElection() bool { return false }
