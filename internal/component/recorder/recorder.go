// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package recorder records core/v1 events. Unlike client-go's recorder, it sends the events of one namespace in the
// order in which they were recorded, and serves the namespaces round-robin, so that one namespace neither delays nor
// displaces the events of others. See docs/adr/0061.
package recorder

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/tools/record"
	recordutil "k8s.io/client-go/tools/record/util"
	"k8s.io/client-go/tools/reference"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

const (
	// capacity is the size of the queue, as in client-go's broadcaster.
	capacity = 1000
	// senders is the number of namespaces whose events are sent concurrently.
	senders = 4
	// firstDelay and maxDelay bound the backoff between attempts to send an event, and maxAttempts is their number.
	// Together they take two minutes, as in client-go's broadcaster.
	firstDelay, maxDelay = time.Second, 16 * time.Second
	maxAttempts          = 12
	// requestTimeout bounds an attempt.
	requestTimeout = 30 * time.Second
	// logInterval is the minimum time between log lines about dropped events.
	logInterval = time.Minute
)

// Values of the metric's label reason: why an event was dropped.
const (
	dropFull        = "queue_full"
	dropRate        = "object_rate"
	dropRejected    = "rejected"
	dropUnreachable = "unreachable"
)

// Sink writes events to the API server. client-go's clients of events implement it.
type Sink interface {
	CreateWithEventNamespaceWithContext(ctx context.Context, event *corev1.Event) (*corev1.Event, error)
	PatchWithEventNamespaceWithContext(ctx context.Context, event *corev1.Event, patch []byte) (*corev1.Event, error)
}

// Recorder is an events.EventRecorder that writes core/v1 events, as KubeVirt does. Recording never blocks: events are
// queued, and sent while the Runnable runs. An event is dropped if the queue is full, if an object has too many events,
// if the API server rejects it, or if the API server cannot be reached for two minutes. The metric
// vireo_events_dropped_total counts these.
type Recorder struct {
	// EventRecorder records with the source given to New. The related object and the action are ignored: core/v1 events as
	// KubeVirt writes them have neither.
	events.EventRecorder

	sink       Sink
	scheme     *runtime.Scheme
	log        logr.Logger
	correlator *record.EventCorrelator
	queue      *queue
	// namespaces is the work queue of the namespaces that have events to send.
	namespaces workqueue.TypedRateLimitingInterface[string]
	dropped    *prometheus.CounterVec
	// logLimit limits the rate of log lines about dropped events.
	logLimit *rate.Sometimes
}

// Add creates a Recorder for a component, and adds it and its metric to a manager.
func Add(mgr ctrl.Manager, source corev1.EventSource) (*Recorder, error) {
	api, err := typedcorev1.NewForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())
	if err != nil {
		return nil, fmt.Errorf("create a client for events: %w", err)
	}
	r := New(api.Events(""), mgr.GetScheme(), source)
	r.log = mgr.GetLogger().WithName("recorder")
	metrics.Registry.Unregister(r.dropped) // from an earlier manager of the process, in tests
	if err := metrics.Registry.Register(r.dropped); err != nil {
		return nil, fmt.Errorf("register the metric of events: %w", err)
	}
	return r, mgr.Add(r)
}

// New returns a Recorder for a component. The scheme contains the kinds of the involved objects.
func New(sink Sink, scheme *runtime.Scheme, source corev1.EventSource) *Recorder {
	return newRecorder(sink, scheme, source,
		workqueue.NewTypedItemExponentialFailureRateLimiter[string](firstDelay, maxDelay))
}

func newRecorder(
	sink Sink, scheme *runtime.Scheme, source corev1.EventSource, delays workqueue.TypedRateLimiter[string],
) *Recorder {
	r := &Recorder{
		sink: sink, scheme: scheme, log: ctrl.Log.WithName("recorder"),
		correlator: record.NewEventCorrelatorWithOptions(record.CorrelatorOptions{}),
		queue:      newQueue(capacity),
		namespaces: workqueue.NewTypedRateLimitingQueue(delays),
		dropped: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "vireo_events_dropped_total",
			Help: "Events that were not sent to the API server: the queue was full, there were too many about one object, or the API server refused them or was not reached.",
		}, []string{"reason"}),
		logLimit: &rate.Sometimes{Interval: logInterval},
	}
	for _, reason := range []string{dropFull, dropRate, dropRejected, dropUnreachable} {
		r.dropped.WithLabelValues(reason)
	}
	r.EventRecorder = r.WithSource(source)
	return r
}

// WithSource returns a recorder for another source that uses the same queue, so that events of several sources stay in
// order.
func (r *Recorder) WithSource(source corev1.EventSource) events.EventRecorder {
	return sourceRecorder{r, source}
}

// sourceRecorder records events of a source.
type sourceRecorder struct {
	*Recorder
	source corev1.EventSource
}

// Eventf implements events.EventRecorder.
func (c sourceRecorder) Eventf(regarding, _ runtime.Object, kind, reason, _, note string, args ...any) { //nolint:revive // as the interface has it
	ref, err := reference.GetReference(c.scheme, regarding)
	if err != nil {
		c.log.Error(err, "Cannot refer to the object of an event", "reason", reason)
		return
	}
	now := metav1.Now()
	namespace := ref.Namespace
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	c.record(&corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: recordutil.GenerateEventName(ref.Name, now.UnixNano()),
			Namespace: namespace},
		InvolvedObject:      *ref,
		Type:                kind,
		Reason:              reason,
		Message:             fmt.Sprintf(note, args...),
		FirstTimestamp:      now,
		LastTimestamp:       now,
		Count:               1,
		Source:              c.source,
		ReportingController: c.source.Component,
		ReportingInstance:   c.source.Host,
	})
}

func (r *Recorder) record(event *corev1.Event) {
	first, dropped := r.queue.push(event)
	if dropped != nil {
		r.drop(dropFull, dropped, nil)
	}
	if first {
		r.namespaces.Add(event.InvolvedObject.Namespace)
	}
}

// drop counts a dropped event and logs it within logLimit.
func (r *Recorder) drop(reason string, event *corev1.Event, err error) {
	r.dropped.WithLabelValues(reason).Inc()
	r.logLimit.Do(func() {
		r.log.Error(err, "Dropped an event, the metric vireo_events_dropped_total counts all", "cause", reason,
			"namespace", event.InvolvedObject.Namespace, "kind", event.InvolvedObject.Kind, "name", event.InvolvedObject.Name,
			"reason", event.Reason)
	})
}

// Start sends events until the context ends.
func (r *Recorder) Start(ctx context.Context) error {
	var wg sync.WaitGroup
	for range senders {
		wg.Go(func() { r.runSender(ctx) })
	}
	<-ctx.Done()
	r.namespaces.ShutDown()
	wg.Wait()
	if left := r.queue.size(); left > 0 {
		r.log.Info("Stopped before all events were sent", "left", left)
	}
	return nil
}

// NeedLeaderElection reports that events are sent without leader election, by every process that records some.
func (r *Recorder) NeedLeaderElection() bool { return false }
