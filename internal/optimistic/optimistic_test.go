// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package optimistic_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/vireo-project/vireo/internal/optimistic"
)

func TestPatch(t *testing.T) {
	api := fake.NewClientBuilder().WithObjects(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b"}}).Build()
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
