// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package kit

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/conditions"
	"github.com/vireo-project/vireo/internal/outcome"
)

func TestWriteStatus(t *testing.T) {
	const key = "a/b"
	read := func() (client.Client, *corev1.Pod) {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b"}}
		c := fake.NewClientBuilder().WithStatusSubresource(pod).WithObjects(pod).Build()
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(pod), pod); err != nil {
			t.Fatal(err)
		}
		return c, pod
	}
	runs := func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodRunning }
	for name, tc := range map[string]struct {
		meanwhile func(context.Context, client.Client, *corev1.Pod) error
		change    func(*corev1.Pod)
		events    int
		want      func(error) bool
	}{
		"a change":       {change: runs, events: 1, want: func(err error) bool { return err == nil }},
		"without change": {change: func(*corev1.Pod) {}, want: func(err error) bool { return err == nil }},
		"a conflict": {
			meanwhile: func(ctx context.Context, c client.Client, pod *corev1.Pod) error {
				return Patch(ctx, c, &pod, func(pod *corev1.Pod) { controllerutil.AddFinalizer(pod, "example.com/a") })
			},
			change: runs, want: func(err error) bool {
				return outcome.IsConflict(err) &&
					strings.Contains(err.Error(), "Pod "+key)
			},
		},
		"an object that is gone": {
			meanwhile: func(ctx context.Context, c client.Client, pod *corev1.Pod) error { return c.Delete(ctx, pod) },
			change:    runs, want: apierrors.IsNotFound,
		},
	} {
		c, pod := read()
		if tc.meanwhile != nil {
			if err := tc.meanwhile(t.Context(), c, pod.DeepCopy()); err != nil {
				t.Fatal(err)
			}
		}
		before, events := pod, 0
		err := WriteStatus(t.Context(), c, &pod, tc.change, func(was *corev1.Pod) {
			events++
			if was != before || pod == before || pod.Status.Phase != corev1.PodRunning {
				t.Errorf("%s: an event is recorded before the write", name)
			}
		})
		if !tc.want(err) || events != tc.events || (pod == before) != (events == 0) || before.Status.Phase != "" {
			t.Errorf("%s: got %v, %d events", name, err, events)
		}
	}
}

func TestPatch(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b"}}
	c := fake.NewClientBuilder().WithObjects(pod).Build()
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(pod), pod); err != nil {
		t.Fatal(err)
	}
	protect := func(pod *corev1.Pod) { controllerutil.AddFinalizer(pod, "example.com/a") }
	before := pod
	if err := Patch(t.Context(), c, &pod, protect); err != nil || len(pod.Finalizers) != 1 || len(before.Finalizers) != 0 {
		t.Errorf("got %v, %v", pod, err)
	}
	written := pod
	if err := Patch(t.Context(), c, &pod, protect); err != nil || pod != written {
		t.Errorf("it is written again: %v, %v", pod, err)
	}
	var status *apierrors.StatusError
	if err := Patch(t.Context(), c, &before, protect); !outcome.IsConflict(err) || !errors.As(err, &status) {
		t.Errorf("got %v for a Pod that has changed", err)
	}
}

func TestFinalizers(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b", Finalizers: []string{"example.com/a"}}}
	c := fake.NewClientBuilder().WithObjects(pod).Build()
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(pod), pod); err != nil {
		t.Fatal(err)
	}
	if err := AddFinalizer(t.Context(), c, &pod, "example.com/b"); err != nil || len(pod.Finalizers) != 2 {
		t.Errorf("got %v, %v", pod.Finalizers, err)
	}
	err := RemoveFinalizer(t.Context(), c, &pod, "example.com/a", "example.com/c")
	if err != nil || len(pod.Finalizers) != 1 || pod.Finalizers[0] != "example.com/b" {
		t.Errorf("got %v, %v", pod.Finalizers, err)
	}
	if err := c.Delete(t.Context(), pod.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(pod), pod); err != nil {
		t.Fatal(err)
	}
	gone := pod.DeepCopy()
	if err := RemoveFinalizer(t.Context(), c, &pod, "example.com/b"); err != nil {
		t.Errorf("the last one: %v", err)
	}
	if err := RemoveFinalizer(t.Context(), c, &gone, "example.com/b"); err != nil {
		t.Errorf("an object that is gone: %v", err)
	}
}

func TestDelete(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b", UID: "u", ResourceVersion: "7"}}
	gone := apierrors.NewNotFound(corev1.Resource("pods"), "b")
	failed := errors.New("failed")
	for name, tc := range map[string]struct {
		options       []client.DeleteOption
		version       string
		period        int64
		answer, fails error
	}{
		"the same object":          {},
		"the same version":         {options: []client.DeleteOption{Unchanged(pod)}, version: "7"},
		"with a grace period":      {options: []client.DeleteOption{client.GracePeriodSeconds(3)}, period: 3},
		"an object that is gone":   {answer: gone},
		"the API server refuses":   {answer: failed, fails: failed},
		"an object of another UID": {answer: apierrors.NewConflict(corev1.Resource("pods"), "b", failed), fails: failed},
	} {
		c := interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
			Delete: func(_ context.Context, _ client.WithWatch, object client.Object, options ...client.DeleteOption) error {
				got := (&client.DeleteOptions{}).ApplyOptions(options)
				var version string
				var period int64
				if v := got.Preconditions.ResourceVersion; v != nil {
					version = *v
				}
				if p := got.GracePeriodSeconds; p != nil {
					period = *p
				}
				if object != client.Object(pod) || *got.Preconditions.UID != "u" || version != tc.version || period != tc.period {
					t.Errorf("%s: deleted with the version %q and the period %d", name, version, period)
				}
				return tc.answer
			},
		})
		err := Delete(t.Context(), c, pod, tc.options...)
		if (err != nil) != (tc.fails != nil) || err != nil && !strings.Contains(err.Error(), "delete Pod a/b: ") {
			t.Errorf("%s: got %v", name, err)
		}
		if apierrors.IsConflict(tc.answer) != outcome.IsConflict(err) {
			t.Errorf("%s: got %v, which is not what the API server answered", name, err)
		}
	}
}

func TestFailure(t *testing.T) {
	recorder := events.NewFakeRecorder(10)
	var list []v1.VirtualMachineCondition
	report := func(failure *Failure, now int64) string {
		before := append([]v1.VirtualMachineCondition(nil), list...)
		SetFailure(&list, v1.VirtualMachineFailure, failure, time.Unix(now, 0))
		RecordFailure(recorder, &v1.VirtualMachine{}, before, v1.VirtualMachineFailure, failure)
		select {
		case event := <-recorder.Events:
			return event
		default:
			return ""
		}
	}
	failure := func(message string) *Failure {
		event := FailureEvent{Reason: "Failed", Action: "Start", Note: "100% " + message}
		return &Failure{Reason: "FailedCreate", Message: message, Events: []FailureEvent{event}}
	}
	for i, step := range []struct {
		failure *Failure
		event   string
	}{
		{failure("no"), "Warning Failed 100% no"},
		{failure("no"), ""},
		{failure("never"), "Warning Failed 100% never"},
		{&Failure{Reason: "Invalid", Message: "without event"}, ""},
		{nil, ""},
		{failure("no"), "Warning Failed 100% no"},
	} {
		if got := report(step.failure, int64(i)); got != step.event {
			t.Errorf("step %d: got the event %q, want %q", i, got, step.event)
		}
		shown := conditions.Find(list, v1.VirtualMachineFailure)
		if (shown == nil) != (step.failure == nil) {
			t.Errorf("step %d: the condition is %v", i, shown)
		}
		if shown != nil && (shown.Status != corev1.ConditionTrue || shown.Message != step.failure.Message) {
			t.Errorf("step %d: the condition is %v", i, shown)
		}
	}
	if since := list[0].LastTransitionTime.Unix(); since != 5 {
		t.Errorf("the condition is true since %d", since)
	}
}
