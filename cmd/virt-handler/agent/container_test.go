// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package agent

import (
	"context"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

// uncopied records whether each list of a reader may share its objects with the cache.
type uncopied struct {
	client.Reader
	shared []bool
}

func (r *uncopied) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	given := (&client.ListOptions{}).ApplyOptions(options)
	r.shared = append(r.shared, given.UnsafeDisableDeepCopy != nil && *given.UnsafeDisableDeepCopy)
	return r.Reader.List(ctx, list, options...)
}

// All Pods are listed for each connection to a launcher, which may connect often.
func TestContainerOfCopiesNoPods(t *testing.T) {
	cache := &uncopied{Reader: fake.NewClientBuilder().Build()}
	if _, err := containerOf(cache)("gone"); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(cache.shared, []bool{true}) {
		t.Errorf("lists without copies: %v", cache.shared)
	}
}

func TestContainerOfAPod(t *testing.T) {
	pod := func(name string, change func(*corev1.PodStatus)) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, UID: types.UID(name)}}
		change(&p.Status)
		return p
	}
	status := func(name, id string) corev1.ContainerStatus {
		return corev1.ContainerStatus{Name: name, ContainerID: id}
	}
	cache := fake.NewClientBuilder().WithObjects(
		pod("runs", func(s *corev1.PodStatus) {
			s.ContainerStatuses = []corev1.ContainerStatus{status("guest-console-log", "containerd://beside"), status("compute", "containerd://8f0c")}
			s.EphemeralContainerStatuses = []corev1.ContainerStatus{status("compute-debug", "containerd://debug")}
		}),
		pod("starts", func(s *corev1.PodStatus) { s.ContainerStatuses = []corev1.ContainerStatus{status("compute", "")} }),
		pod("debugged", func(s *corev1.PodStatus) {
			s.EphemeralContainerStatuses = []corev1.ContainerStatus{status("compute", "containerd://debug")}
		}),
	).Build()
	find := containerOf(cache)
	for uid, want := range map[types.UID]string{"runs": "8f0c", "gone": ""} {
		if id, err := find(uid); err != nil || id != want {
			t.Errorf("%s: got %q, %v, want %q", uid, id, err, want)
		}
	}
	for _, uid := range []types.UID{"starts", "debugged"} {
		if id, err := find(uid); err == nil {
			t.Errorf("%s: got %q", uid, id)
		}
	}
}
