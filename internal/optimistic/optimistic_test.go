// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package optimistic_test

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/vireo-project/vireo/internal/optimistic"
)

func TestPatch(t *testing.T) {
	api := fake.NewClientBuilder().WithObjects(
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b"}}).Build()
	read := &corev1.Pod{}
	if err := api.Get(t.Context(), client.ObjectKey{Namespace: "a", Name: "b"}, read); err != nil {
		t.Fatal(err)
	}
	label := func(value string) func(*corev1.Pod) {
		return func(pod *corev1.Pod) { metav1.SetMetaDataLabel(&pod.ObjectMeta, "k", value) }
	}
	changed, err := optimistic.Patch(t.Context(), api, read, label("first"))
	if err != nil || changed.Labels["k"] != "first" || changed.ResourceVersion == read.ResourceVersion {
		t.Errorf("got %v, %v; want the patched Pod", changed, err)
	}
	if len(read.Labels) > 0 {
		t.Error("the Pod that was read has changed")
	}
	if _, err := optimistic.Patch(t.Context(), api, read, label("second")); !apierrors.IsConflict(err) {
		t.Errorf("got %v for a Pod that has changed, want a conflict", err)
	}
}

// TestClient has a cache that receives changes only when the test says so.
func TestClient(t *testing.T) {
	name := client.ObjectKey{Namespace: "a", Name: "b"}
	for _, test := range []struct {
		name string
		// write changes the Pod, as the API server has it.
		write func(context.Context, client.Client, *corev1.Pod) error
		kinds []client.Object
		stale bool
	}{
		{"metadata", func(ctx context.Context, c client.Client, pod *corev1.Pod) error {
			_, err := optimistic.Patch(ctx, c, pod, func(pod *corev1.Pod) { metav1.SetMetaDataLabel(&pod.ObjectMeta, "k", "v") })
			return err
		}, []client.Object{&corev1.Pod{}}, true},
		{"an update", func(ctx context.Context, c client.Client, pod *corev1.Pod) error {
			changed := pod.DeepCopy()
			metav1.SetMetaDataLabel(&changed.ObjectMeta, "k", "v")
			return c.Update(ctx, changed)
		}, []client.Object{&corev1.Pod{}}, true},
		{"status", func(ctx context.Context, c client.Client, pod *corev1.Pod) error {
			changed := pod.DeepCopy()
			changed.Status.Phase = corev1.PodRunning
			return c.Status().Patch(ctx, changed, optimistic.MergeFrom(pod))
		}, []client.Object{&corev1.Pod{}}, true},
		{"another kind", func(ctx context.Context, c client.Client, pod *corev1.Pod) error {
			_, err := optimistic.Patch(ctx, c, pod, func(pod *corev1.Pod) { metav1.SetMetaDataLabel(&pod.ObjectMeta, "k", "v") })
			return err
		}, []client.Object{&corev1.Node{}}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			var cached *corev1.Pod
			api := fake.NewClientBuilder().WithStatusSubresource(&corev1.Pod{}).WithObjects(
				&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name, UID: "first"}}).Build()
			receive := func() {
				cached = &corev1.Pod{}
				if err := api.Get(t.Context(), name, cached); apierrors.IsNotFound(err) {
					cached = nil
				} else if err != nil {
					t.Fatal(err)
				}
			}
			receive()
			c := optimistic.Client(interceptor.NewClient(api, interceptor.Funcs{
				Get: func(_ context.Context, _ client.WithWatch, _ client.ObjectKey, o client.Object, _ ...client.GetOption) error {
					if cached == nil {
						return apierrors.NewNotFound(corev1.Resource("pods"), name.Name)
					}
					cached.DeepCopyInto(o.(*corev1.Pod))
					return nil
				},
			}), test.kinds...)

			read := &corev1.Pod{}
			if err := c.Get(t.Context(), name, read); err != nil {
				t.Fatal(err)
			}
			if err := test.write(t.Context(), c, read); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if err := c.Get(t.Context(), name, &corev1.Pod{}); apierrors.IsConflict(err) != test.stale ||
					!test.stale && err != nil {
					t.Fatalf("got %v before the cache has the change", err)
				}
			}
			receive()
			if err := c.Get(t.Context(), name, read); err != nil {
				t.Fatalf("got %v after the cache has the change", err)
			}
			// A Pod that was deleted, or replaced by another one of its name, has no version to wait for.
			for _, replaced := range []bool{false, true} {
				if err := test.write(t.Context(), c, read); err != nil {
					t.Fatal(err)
				}
				if cached = nil; replaced {
					cached = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name, UID: "second",
						ResourceVersion: "1"}}
				}
				if err := c.Get(t.Context(), name, &corev1.Pod{}); apierrors.IsNotFound(err) == replaced || replaced && err != nil {
					t.Errorf("got %v for a Pod that was deleted, replaced: %t", err, replaced)
				}
				receive()
				if err := c.Get(t.Context(), name, read); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}
