// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstance

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/test/builder"
)

func TestUnusedPod(t *testing.T) {
	const reason = "UnexpectedAdmissionError"
	refused := func() *builder.PodStatus { return builder.MakePodStatus().Refused(reason, "the device plugin is gone") }
	with := func(status *builder.PodStatus, change func(*corev1.PodStatus)) corev1.PodStatus {
		out := status.Obj()
		change(&out)
		return out
	}
	container := func(change func(*corev1.ContainerStatus)) corev1.PodStatus {
		return with(refused().Waiting("ContainerCreating", ""), func(s *corev1.PodStatus) { change(&s.ContainerStatuses[0]) })
	}
	sidecar := corev1.ContainerStatus{Name: "proxy",
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}
	for name, tc := range map[string]struct {
		status corev1.PodStatus
		want   bool
	}{
		"refused":                          {refused().Obj(), true},
		"refused, with a container status": {refused().Waiting("ContainerCreating", "").Obj(), true},
		"evicted before it ran":            {builder.MakePodStatus().Evicted("the node is low on memory").Obj(), true},
		"failed without a reason":          {builder.MakePodStatus().Refused("", "").Obj(), true},
		"starting":                         {builder.MakePodStatus().Waiting("ContainerCreating", "").Obj(), false},
		"running":                          {builder.MakePodStatus().Running().Obj(), false},
		"completed":                        {builder.MakePodStatus().Terminated(0, "Completed", "").Obj(), false},
		"failed":                           {builder.MakePodStatus().Terminated(1, "Error", "").Obj(), false},
		"could not be started":             {builder.MakePodStatus().Terminated(128, "StartError", "").Obj(), false},
		"evicted while it ran": {with(builder.MakePodStatus().Running(), func(s *corev1.PodStatus) {
			s.Phase, s.Reason = corev1.PodFailed, "Evicted"
		}), false},
		"ran, and the kubelet no longer reports its containers": {with(refused(), func(s *corev1.PodStatus) {
			s.Conditions = []corev1.PodCondition{{Type: v1.VirtualMachineUnpaused, Status: corev1.ConditionTrue}}
		}), false},
		"restarted, with a terminated container": {container(func(c *corev1.ContainerStatus) {
			c.LastTerminationState.Terminated = &corev1.ContainerStateTerminated{}
		}), false},
		"restarted, by count":   {container(func(c *corev1.ContainerStatus) { c.RestartCount = 1 }), false},
		"another container ran": {with(refused(), func(s *corev1.PodStatus) { s.InitContainerStatuses = []corev1.ContainerStatus{sidecar} }), false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := unused(&corev1.Pod{Status: tc.status}); got != tc.want {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}

func TestRetryAtDoublesDelay(t *testing.T) {
	first := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	created, since := first, time.Time{}
	var pauses []time.Duration
	for range 9 {
		next := retryAt(created, since)
		pauses = append(pauses, next.Sub(created)/time.Second)
		created, since = next, first
	}
	want := []time.Duration{2, 2, 4, 8, 16, 32, 60, 60, 60}
	for i := range want {
		if pauses[i] != want[i] {
			t.Fatalf("pauses of %v seconds, want %v", pauses, want)
		}
	}
	// Clocks differ, and a stamp may be younger than the Pod.
	if got := retryAt(first, first.Add(time.Hour)); got != first.Add(2*time.Second) {
		t.Errorf("after a stamp in the future: %s", got)
	}
}
