// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package kit

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
)

func TestPredicates(t *testing.T) {
	phase := func(p corev1.PodPhase) *corev1.Pod { return &corev1.Pod{Status: corev1.PodStatus{Phase: p}} }
	changes := Updates(func(before, after *corev1.Pod) bool { return before.Status.Phase != after.Status.Phase })
	hasFailed := func(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodFailed }
	for name, tc := range map[string]struct {
		predicate predicate.Predicate
		// created, changed, same and deleted are whether such an event passes.
		created, changed, same, deleted bool
	}{
		"updates":                  {changes, true, true, false, true},
		"except creations":         {ExceptCreations(changes), false, true, false, true},
		"except deletions":         {ExceptDeletions(changes), true, true, false, false},
		"creations and deletions":  {CreationsAndDeletions, true, false, false, true},
		"deletions":                {Deletions, false, false, false, true},
		"objects":                  {Objects(hasFailed), false, true, false, false},
		"objects of another kind":  {Objects(func(*corev1.Node) bool { return true }), false, false, false, false},
		"updates of another kind":  {Updates(func(*corev1.Node, *corev1.Node) bool { return true }), true, false, false, true},
		"the same without changes": {Updates(func(*corev1.Pod, *corev1.Pod) bool { return true }), true, true, true, true},
	} {
		running, failed := phase(corev1.PodRunning), phase(corev1.PodFailed)
		got := []bool{
			tc.predicate.Create(event.CreateEvent{Object: running}),
			tc.predicate.Update(event.UpdateEvent{ObjectOld: running, ObjectNew: failed}),
			tc.predicate.Update(event.UpdateEvent{ObjectOld: running, ObjectNew: running}),
			tc.predicate.Delete(event.DeleteEvent{Object: running}),
		}
		for i, want := range []bool{tc.created, tc.changed, tc.same, tc.deleted} {
			if got[i] != want {
				t.Errorf("%s: event %d passes: %t", name, i, got[i])
			}
		}
	}
}
