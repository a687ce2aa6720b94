// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package recorder

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/util/workqueue"
)

var source = corev1.EventSource{Component: "virt-test", Host: "node-1"}

// api is an API server.
type api struct {
	// respond returns the result of each request, and may block. Nil accepts all.
	respond func(*corev1.Event) error
	// arrived receives the accepted events in order.
	arrived chan *corev1.Event

	mu    sync.Mutex
	names map[string]bool
}

func newAPI(respond func(*corev1.Event) error) *api {
	return &api{respond: respond, arrived: make(chan *corev1.Event, 2*capacity), names: map[string]bool{}}
}

func (a *api) CreateWithEventNamespaceWithContext(_ context.Context, event *corev1.Event) (*corev1.Event, error) {
	if err := a.checkExists(event); err != nil {
		return nil, err
	}
	if a.respond != nil {
		if err := a.respond(event); err != nil {
			return nil, err
		}
	}
	a.arrived <- event
	return event, nil
}

func (a *api) PatchWithEventNamespaceWithContext(
	_ context.Context, event *corev1.Event, _ []byte,
) (*corev1.Event, error) {
	if a.respond != nil {
		if err := a.respond(event); err != nil {
			return nil, err
		}
	}
	a.arrived <- event
	return event, nil
}

// checkExists returns AlreadyExists for an event that was stored although its response was lost.
func (a *api) checkExists(event *corev1.Event) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.names[event.Name] {
		return apierrors.NewAlreadyExists(schema.GroupResource{Resource: "events"}, event.Name)
	}
	return nil
}

// store records that an event exists.
func (a *api) store(event *corev1.Event) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.names[event.Name] = true
}

// reasons returns the reasons of the next events that arrive.
func (a *api) reasons(count int) (reasons []string) {
	for range count {
		reasons = append(reasons, (<-a.arrived).Reason)
	}
	return reasons
}

func newTestRecorder(a *api) *Recorder {
	return newRecorder(a, scheme.Scheme, source, workqueue.NewTypedItemExponentialFailureRateLimiter[string](0, 0))
}

// start runs the recorder until the test ends.
func start(t *testing.T, r *Recorder) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Start(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func pod(namespace, name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(namespace + name)}}
}

// flood records events, each about another Pod of a namespace.
func flood(r *Recorder, namespace string, count int) {
	for i := range count {
		r.Eventf(pod(namespace, fmt.Sprintf("pod-%d", i)), nil, corev1.EventTypeNormal, fmt.Sprint(namespace, i), "Action",
			"note")
	}
}

func expectDropped(t *testing.T, r *Recorder, reason string, want int) {
	t.Helper()
	if got := testutil.ToFloat64(r.dropped.WithLabelValues(reason)); got != float64(want) {
		t.Errorf("%s dropped %v events, not %d", reason, got, want)
	}
}

func TestOrderOfEvents(t *testing.T) {
	a := newAPI(nil)
	r := newTestRecorder(a)
	start(t, r)
	about := pod("ns", "pod")
	const count = 20
	other := corev1.EventSource{Component: "virt-other"}
	for i := range count {
		by := r.EventRecorder
		if i%2 == 1 {
			by = r.WithSource(other)
		}
		by.Eventf(about, nil, corev1.EventTypeNormal, fmt.Sprintf("Reason%02d", i), "Action", "note %d", i)
	}
	for i := range count {
		event := <-a.arrived
		if want := fmt.Sprintf("Reason%02d", i); event.Reason != want {
			t.Fatalf("event %d is %s", i, event.Reason)
		}
		from := source
		if i%2 == 1 {
			from = other
		}
		if want := fmt.Sprintf("note %d", i); event.Message != want || event.Source != from ||
			event.ReportingController != from.Component {
			t.Errorf("event %d is %q of %v", i, event.Message, event.Source)
		}
		if event.InvolvedObject.Kind != "Pod" || event.InvolvedObject.UID != about.UID || event.Namespace != "ns" ||
			event.LastTimestamp.IsZero() || event.Count != 1 {
			t.Errorf("event %d is about %v at %v", i, event.InvolvedObject, event.LastTimestamp)
		}
	}
}

func TestEventsOfClusterScopedObjects(t *testing.T) {
	a := newAPI(nil)
	r := newTestRecorder(a)
	start(t, r)
	r.Eventf(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}}, nil, corev1.EventTypeWarning, "Gone", "Action",
		"note")
	if event := <-a.arrived; event.Namespace != metav1.NamespaceDefault || event.InvolvedObject.Namespace != "" {
		t.Errorf("the event is in namespace %q, about an object in %q", event.Namespace, event.InvolvedObject.Namespace)
	}
}

// A namespace whose requests block occupies one sender; the other senders serve the other namespaces.
func TestSlowNamespaceDelaysNoOther(t *testing.T) {
	unblock := make(chan struct{})
	a := newAPI(func(event *corev1.Event) error {
		if event.Namespace == "noisy" {
			<-unblock
		}
		return nil
	})
	r := newTestRecorder(a)
	start(t, r)
	t.Cleanup(func() { close(unblock) })
	flood(r, "noisy", 2*capacity)
	for i := range 3 {
		flood(r, fmt.Sprint("quiet-", i), 2)
	}
	got := a.reasons(6)
	slices.Sort(got)
	if want := []string{"quiet-00", "quiet-01", "quiet-10", "quiet-11", "quiet-20", "quiet-21"}; !slices.Equal(got, want) {
		t.Errorf("got %v", got)
	}
}

func TestNamespacesAreServedRoundRobin(t *testing.T) {
	a := newAPI(nil)
	r := newTestRecorder(a)
	flood(r, "noisy", 3)
	flood(r, "quiet", 2)
	for range 5 {
		namespace, _ := r.namespaces.Get()
		r.sendNext(t.Context(), namespace)
		r.namespaces.Done(namespace)
	}
	if got, want := a.reasons(5), []string{"noisy0", "quiet0", "noisy1", "quiet1", "noisy2"}; !slices.Equal(got, want) {
		t.Errorf("got %v", got)
	}
}

func TestFullQueueDropsFromTheLongestNamespace(t *testing.T) {
	a := newAPI(nil)
	r := newTestRecorder(a)
	flood(r, "noisy", capacity+5)
	expectDropped(t, r, dropFull, 5)
	flood(r, "quiet", 2)
	expectDropped(t, r, dropFull, 7)
	start(t, r)
	noisy, quiet := 0, 0
	for _, reason := range a.reasons(capacity) {
		switch reason {
		case fmt.Sprint("noisy", noisy):
			noisy++
		case fmt.Sprint("quiet", quiet):
			quiet++
		default:
			t.Fatalf("%s comes after %d and %d", reason, noisy, quiet)
		}
	}
	if noisy != capacity-2 || quiet != 2 {
		t.Errorf("%d and %d events arrived", noisy, quiet)
	}
}

// The only event of a namespace is not dropped, because it may be in flight.
func TestFullQueueOfSingleEventsDropsTheNewOne(t *testing.T) {
	q := newQueue(2)
	for _, namespace := range []string{"a", "b"} {
		if first, dropped := q.push(&corev1.Event{InvolvedObject: corev1.ObjectReference{Namespace: namespace}}); !first ||
			dropped != nil {
			t.Fatal("an event was dropped")
		}
	}
	third := &corev1.Event{InvolvedObject: corev1.ObjectReference{Namespace: "c"}}
	if first, dropped := q.push(third); first || dropped != third {
		t.Errorf("got %v, %v", first, dropped)
	}
}

func TestRetriesKeepTheOrder(t *testing.T) {
	attempts := map[string]int{}
	a := newAPI(nil)
	a.respond = func(event *corev1.Event) error {
		attempts[event.Reason]++
		switch {
		case event.Reason == "First" && attempts["First"] == 1:
			return errors.New("connection refused")
		case event.Reason == "First" && attempts["First"] == 2:
			return apierrors.NewTooManyRequests("busy", 1)
		case event.Reason == "Second":
			// The event is stored, and the response is lost.
			a.store(event)
			a.arrived <- event
			return context.DeadlineExceeded
		}
		return nil
	}
	r := newTestRecorder(a)
	for _, reason := range []string{"First", "Second", "Third"} {
		r.Eventf(pod("ns", "pod"), nil, corev1.EventTypeNormal, reason, "Action", "note")
	}
	start(t, r)
	if got, want := a.reasons(3), []string{"First", "Second", "Third"}; !slices.Equal(got, want) {
		t.Errorf("got %v", got)
	}
	for _, reason := range []string{dropFull, dropRate, dropRejected, dropUnreachable} {
		expectDropped(t, r, reason, 0)
	}
}

func TestDroppedEventsAreCounted(t *testing.T) {
	terminating := apierrors.NewForbidden(schema.GroupResource{Resource: "events"}, "",
		errors.New("the namespace is terminating"))
	terminating.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	a := newAPI(func(event *corev1.Event) error {
		switch event.Reason {
		case "Refused":
			return apierrors.NewForbidden(schema.GroupResource{Resource: "events"}, event.Name, errors.New("a quota"))
		case "Unreachable":
			return errors.New("connection refused")
		case "Late":
			return terminating
		}
		return nil
	})
	r := newTestRecorder(a)
	for _, reason := range []string{"Refused", "Unreachable", "Late", "Taken"} {
		r.Eventf(pod("ns", "pod"), nil, corev1.EventTypeNormal, reason, "Action", "note")
	}
	start(t, r)
	if got := a.reasons(1); got[0] != "Taken" {
		t.Errorf("got %v", got)
	}
	expectDropped(t, r, dropRejected, 1)
	expectDropped(t, r, dropUnreachable, 1)
	expectDropped(t, r, dropFull, 0)
}

func TestRepeatedEventsAreCorrelated(t *testing.T) {
	a := newAPI(nil)
	r := newTestRecorder(a)
	start(t, r)
	const allowed = 25 // client-go's burst for one object
	for range allowed + 1 {
		r.Eventf(pod("ns", "pod"), nil, corev1.EventTypeWarning, "Again", "Action", "note")
	}
	flood(r, "ns", 1)
	for i := range allowed {
		if event := <-a.arrived; event.Count != int32(i)+1 {
			t.Errorf("event %d counts %d", i, event.Count)
		}
	}
	if got := a.reasons(1); got[0] != "ns0" {
		t.Errorf("got %v", got)
	}
	expectDropped(t, r, dropRate, 1)
}
