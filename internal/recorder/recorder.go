// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package recorder records events. Those of one namespace reach the API server in the order in which they were recorded, and
// namespaces take turns. See docs/adr/0061.
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
	// capacity is how many events wait at most, as in client-go's broadcaster.
	capacity = 1000
	// senders is how many namespaces are served at a time.
	senders = 4
	// firstDelay and maxDelay are between two tries to send an event, and maxTries is how many there are: two minutes, as in
	// client-go's broadcaster.
	firstDelay, maxDelay = time.Second, 16 * time.Second
	maxTries             = 12
	// requestTimeout is how long a try takes at most.
	requestTimeout = 30 * time.Second
	// logInterval is the least time between two lines about events that were dropped.
	logInterval = time.Minute
)

// Why an event was dropped, in the label of the metric.
const (
	dropFull        = "queue_full"
	dropRate        = "object_rate"
	dropRejected    = "rejected"
	dropUnreachable = "unreachable"
)

// Sink is where events are sent to. Clients for events implement it.
type Sink interface {
	CreateWithEventNamespaceWithContext(ctx context.Context, event *corev1.Event) (*corev1.Event, error)
	PatchWithEventNamespaceWithContext(ctx context.Context, event *corev1.Event, patch []byte) (*corev1.Event, error)
}

// Recorder records core/v1 events, as KubeVirt does. Recording never waits for the API server. It is a Runnable that sends while the
// manager runs.
type Recorder struct {
	// EventRecorder takes the events. They have neither the related object nor the action that its method asks for: what these say
	// has to be in the note.
	events.EventRecorder

	sink       Sink
	scheme     *runtime.Scheme
	log        logr.Logger
	correlator *record.EventCorrelator
	queue      *queue
	// turns has the namespaces of the queue that are to be served.
	turns   workqueue.TypedRateLimitingInterface[string]
	dropped *prometheus.CounterVec
	// mayLog limits how often the log says that events were dropped.
	mayLog *rate.Sometimes
}

// Add makes a Recorder for a component and adds it and its metric to a manager.
func Add(mgr ctrl.Manager, source corev1.EventSource) (*Recorder, error) {
	api, err := typedcorev1.NewForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())
	if err != nil {
		return nil, fmt.Errorf("make a client for events: %w", err)
	}
	r := New(api.Events(""), mgr.GetScheme(), source)
	r.log = mgr.GetLogger().WithName("recorder")
	metrics.Registry.Unregister(r.dropped) // that of a manager that this process had before, as in tests
	if err := metrics.Registry.Register(r.dropped); err != nil {
		return nil, fmt.Errorf("register the metric of events: %w", err)
	}
	return r, mgr.Add(r)
}

// New makes a Recorder for a component. The scheme has the kinds of the objects that events are about.
func New(sink Sink, scheme *runtime.Scheme, source corev1.EventSource) *Recorder {
	return newRecorder(sink, scheme, source, workqueue.NewTypedItemExponentialFailureRateLimiter[string](firstDelay, maxDelay))
}

func newRecorder(sink Sink, scheme *runtime.Scheme, source corev1.EventSource, delays workqueue.TypedRateLimiter[string]) *Recorder {
	r := &Recorder{
		sink: sink, scheme: scheme, log: ctrl.Log.WithName("recorder"),
		correlator: record.NewEventCorrelatorWithOptions(record.CorrelatorOptions{}),
		queue:      newQueue(capacity),
		turns:      workqueue.NewTypedRateLimitingQueue(delays),
		dropped: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "vireo_events_dropped_total",
			Help: "Events that were not sent to the API server: the queue was full, there were too many about one object, or the API server refused them or was not reached.",
		}, []string{"reason"}),
		mayLog: &rate.Sometimes{Interval: logInterval},
	}
	for _, reason := range []string{dropFull, dropRate, dropRejected, dropUnreachable} {
		r.dropped.WithLabelValues(reason)
	}
	r.EventRecorder = r.As(source)
	return r
}

// As records for another component, in the same order.
func (r *Recorder) As(source corev1.EventSource) events.EventRecorder { return component{r, source} }

// component records in the name of a component.
type component struct {
	*Recorder
	source corev1.EventSource
}

// Eventf implements events.EventRecorder.
func (c component) Eventf(about, _ runtime.Object, kind, reason, _, note string, args ...any) { //nolint:revive // as the interface has it
	ref, err := reference.GetReference(c.scheme, about)
	if err != nil {
		c.log.Error(err, "Cannot name the object of an event", "reason", reason)
		return
	}
	now := metav1.Now()
	namespace := ref.Namespace
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	c.record(&corev1.Event{
		ObjectMeta:          metav1.ObjectMeta{Name: recordutil.GenerateEventName(ref.Name, now.UnixNano()), Namespace: namespace},
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
		r.turns.Add(event.InvolvedObject.Namespace)
	}
}

// drop counts an event that is not sent.
func (r *Recorder) drop(reason string, event *corev1.Event, err error) {
	r.dropped.WithLabelValues(reason).Inc()
	r.mayLog.Do(func() {
		r.log.Error(err, "Dropped an event, the metric vireo_events_dropped_total counts all", "why", reason,
			"namespace", event.InvolvedObject.Namespace, "kind", event.InvolvedObject.Kind, "name", event.InvolvedObject.Name, "reason", event.Reason)
	})
}

// Start sends what is recorded until the context ends.
func (r *Recorder) Start(ctx context.Context) error {
	var wg sync.WaitGroup
	for range senders {
		wg.Go(func() { r.serve(ctx) })
	}
	<-ctx.Done()
	r.turns.ShutDown()
	wg.Wait()
	if left := r.queue.size(); left > 0 {
		r.log.Info("Stopped before all events were sent", "left", left)
	}
	return nil
}

// NeedLeaderElection says that events are sent by every process that records any.
func (r *Recorder) NeedLeaderElection() bool { return false }
