// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package recorder_test

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/record"

	"github.com/vireo-project/vireo/internal/recorder"
)

// slow is a sink that takes an event only when the test receives it.
type slow struct {
	record.EventSink
	taken chan *corev1.Event
}

func (s *slow) Create(event *corev1.Event) (*corev1.Event, error) {
	s.taken <- event
	return event, nil
}

func TestEventsArriveInTheirOrder(t *testing.T) {
	sink := &slow{taken: make(chan *corev1.Event)}
	r := recorder.New(sink, scheme.Scheme, corev1.EventSource{Component: "virt-test", Host: "node-1"})
	about := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pod", UID: "1"}}
	const count = 20
	other := r.As(corev1.EventSource{Component: "virt-other"})
	for i := range count {
		by := r.EventRecorder
		if i%2 == 1 {
			by = other
		}
		by.Eventf(about, nil, corev1.EventTypeNormal, fmt.Sprintf("Reason%02d", i), "Action", "note %d", i)
	}
	for i := range count {
		event := <-sink.taken
		if want := fmt.Sprintf("Reason%02d", i); event.Reason != want {
			t.Fatalf("event %d is %s", i, event.Reason)
		}
		source := corev1.EventSource{Component: "virt-test", Host: "node-1"}
		if i%2 == 1 {
			source = corev1.EventSource{Component: "virt-other"}
		}
		if want := fmt.Sprintf("note %d", i); event.Message != want || event.Source != source {
			t.Errorf("event %d is %q of %v", i, event.Message, event.Source)
		}
		if event.InvolvedObject.Kind != "Pod" || event.InvolvedObject.UID != "1" || event.LastTimestamp.IsZero() {
			t.Errorf("event %d is about %v at %v", i, event.InvolvedObject, event.LastTimestamp)
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := r.Start(ctx); err != nil {
		t.Error(err)
	}
}
