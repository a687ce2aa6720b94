// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package kit

import (
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

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
			change: runs, want: func(err error) bool { return outcome.IsConflict(err) && strings.Contains(err.Error(), "Pod "+key) },
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
