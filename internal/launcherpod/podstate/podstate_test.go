// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podstate

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/utils/ptr"

	"github.com/vireo-project/vireo/internal/launcherpod"
)

// States of a container.
var (
	waiting    = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}
	running    = corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	terminated = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1}}
)

// TestStates has each of the Pod's phases with each state of its containers, before and after its deletion. Of every
// case it says what each of the predicates returns.
func TestStates(t *testing.T) {
	type states map[string]corev1.ContainerState
	const compute, console = launcherpod.ComputeContainer, launcherpod.ConsoleLogContainer
	for _, c := range []struct {
		name                        string
		phase                       corev1.PodPhase
		containers                  states
		finished, terminal, deleted bool // deleted is TerminalOrDeleted of a Pod without a deletion timestamp
		running                     bool
	}{
		{name: "created", phase: ""},
		{name: "pending", phase: corev1.PodPending},
		{name: "pending, containers created", phase: corev1.PodPending, containers: states{compute: waiting}},
		{name: "pending, launcher runs", phase: corev1.PodPending, containers: states{compute: running}},
		{
			name: "pending, launcher ended", phase: corev1.PodPending, containers: states{compute: terminated, console: waiting},
			finished: true,
		},
		{name: "running, no status of containers", phase: corev1.PodRunning},
		{name: "running, launcher waits", phase: corev1.PodRunning, containers: states{compute: waiting, console: running}},
		{name: "running", phase: corev1.PodRunning, containers: states{compute: running, console: running}, running: true},
		{
			name: "running, another container ended", phase: corev1.PodRunning,
			containers: states{compute: running, console: terminated}, running: true,
		},
		{
			name: "running, launcher ended", phase: corev1.PodRunning, containers: states{compute: terminated, console: running},
			finished: true,
		},
		{name: "unknown", phase: corev1.PodUnknown, containers: states{compute: running}},
		{name: "unknown, launcher ended", phase: corev1.PodUnknown, containers: states{compute: terminated}, finished: true},
		{
			name: "succeeded", phase: corev1.PodSucceeded, containers: states{compute: terminated},
			finished: true, terminal: true, deleted: true,
		},
		{
			name: "failed", phase: corev1.PodFailed, containers: states{compute: terminated},
			finished: true, terminal: true, deleted: true,
		},
		{name: "failed before it ran", phase: corev1.PodFailed, finished: true, terminal: true, deleted: true},
		{
			name: "failed, status of the launcher is old", phase: corev1.PodFailed, containers: states{compute: running},
			finished: true, terminal: true, deleted: true,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			pod := &corev1.Pod{Spec: corev1.PodSpec{NodeName: "a"}, Status: corev1.PodStatus{Phase: c.phase}}
			for name, state := range c.containers {
				pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses,
					corev1.ContainerStatus{Name: name, State: state})
			}
			for _, deletion := range []*metav1.Time{nil, ptr.To(metav1.NewTime(time.Unix(0, 0)))} {
				pod.DeletionTimestamp = deletion
				expect(t, "Finished", Finished(pod), c.finished)
				expect(t, "Terminal", Terminal(pod), c.terminal)
				expect(t, "NotTerminal", NotTerminal.Matches(fields.Set{"status.phase": string(pod.Status.Phase)}), !c.terminal)
				expect(t, "TerminalOrDeleted", TerminalOrDeleted(pod), c.deleted || deletion != nil)
				expect(t, "Running", Running(pod), c.running)
			}
			pod.Spec.NodeName = ""
			expect(t, "Running without a node", Running(pod), false)
		})
	}
}

func expect(t *testing.T, name string, got, want bool) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %t, want %t", name, got, want)
	}
}

func TestCondition(t *testing.T) {
	pod := &corev1.Pod{Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled},
		{Type: corev1.PodReady}}}}
	if got := Condition(pod, corev1.PodReady); got != &pod.Status.Conditions[1] {
		t.Errorf("got %v, want the Pod's own condition", got)
	}
	if got := Condition(pod, corev1.DisruptionTarget); got != nil {
		t.Errorf("got %v, want none", got)
	}
}
