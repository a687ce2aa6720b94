// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package manifests

import (
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/vireo-project/vireo/internal/launcherpod/podstate"
)

// Rollout is the progress of a component's rollout.
type Rollout struct {
	// Done is true when all Pods are updated and ready.
	Done bool
	// Message is what the rollout is waiting for, or that it is done.
	Message string
}

// RolloutOf returns the progress of a DaemonSet. It does not wait for the Pods of nodes that are lost, some of which
// may be updated.
func RolloutOf(ds *appsv1.DaemonSet, lost, lostUpdated int) Rollout {
	s := ds.Status
	reachable := max(int(s.DesiredNumberScheduled)-lost, 0)
	switch {
	case s.ObservedGeneration < ds.Generation:
		return Rollout{Message: fmt.Sprintf("DaemonSet %s is not yet observed by its controller", ds.Name)}
	case int(s.UpdatedNumberScheduled)-lostUpdated < reachable:
		return Rollout{Message: fmt.Sprintf("%s is updated on %d of %d nodes", ds.Name, s.UpdatedNumberScheduled,
			s.DesiredNumberScheduled)}
	case int(s.NumberReady) < reachable:
		return Rollout{Message: fmt.Sprintf("%s is ready on %d of %d nodes", ds.Name, s.NumberReady,
			s.DesiredNumberScheduled)}
	case lost > 0:
		return Rollout{Done: true,
			Message: fmt.Sprintf("%s is ready on %d of %d nodes, and %d are lost", ds.Name, s.NumberReady,
				s.DesiredNumberScheduled, lost)}
	}
	return Rollout{Done: true, Message: fmt.Sprintf("%s is ready on all %d nodes", ds.Name, s.DesiredNumberScheduled)}
}

// RolloutOfDeployment returns the progress of a Deployment.
func RolloutOfDeployment(d *appsv1.Deployment) Rollout {
	s, want := d.Status, ptr.Deref(d.Spec.Replicas, 1)
	switch {
	case s.ObservedGeneration < d.Generation:
		return Rollout{Message: fmt.Sprintf("Deployment %s is not yet observed by its controller", d.Name)}
	case s.UpdatedReplicas < want:
		return Rollout{Message: fmt.Sprintf("%d of %d Pods of %s are updated", s.UpdatedReplicas, want, d.Name)}
	case s.ReadyReplicas < want:
		return Rollout{Message: fmt.Sprintf("%d of %d Pods of %s are ready", s.ReadyReplicas, want, d.Name)}
	case s.Replicas > want:
		return Rollout{Message: fmt.Sprintf("%d old Pods of %s have still to end", s.Replicas-want, d.Name)}
	}
	return Rollout{Done: true, Message: fmt.Sprintf("all %d Pods of %s are ready", want, d.Name)}
}

// FailureOfDeployment returns why the Pods of a Deployment cannot be created, as when a quota or a policy forbids it,
// or nothing.
func FailureOfDeployment(d *appsv1.Deployment) string {
	for _, c := range d.Status.Conditions {
		if c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue {
			return crash("Deployment "+d.Name, "no Pod can be created", c.Reason, c.Message)
		}
	}
	return ""
}

// RolloutOfController returns the progress of virt-controller's Deployment. It waits until no Pod of an older version
// runs. A Pod that is not ready is no reason to wait, since the leader is another one.
func RolloutOfController(d *appsv1.Deployment) Rollout {
	s, want := d.Status, ptr.Deref(d.Spec.Replicas, 1)
	r := RolloutOfDeployment(d)
	if s.ObservedGeneration >= d.Generation && s.UpdatedReplicas >= want && s.Replicas <= want && s.ReadyReplicas > 0 {
		r.Done = true
	}
	return r
}

// IsUpdated reports whether a Pod was made from a template. Templates without an identifier are compared by their
// images.
func IsUpdated(pod *corev1.Pod, template *corev1.PodTemplateSpec) bool {
	if id := template.Annotations[IdentifierAnnotation]; id != "" {
		return pod.Annotations[IdentifierAnnotation] == id
	}
	return slices.EqualFunc(pod.Spec.Containers, template.Spec.Containers,
		func(a, b corev1.Container) bool { return a.Image == b.Image })
}

// AvailableSince returns since when a Pod is ready, and whether it is ready.
func AvailableSince(pod *corev1.Pod) (time.Time, bool) {
	ready := podstate.Condition(pod, corev1.PodReady)
	if ready == nil {
		return time.Time{}, false
	}
	return ready.LastTransitionTime.Time, ready.Status == corev1.ConditionTrue && pod.DeletionTimestamp == nil
}

const (
	// maxReason is the maximum length of the reason why a Pod does not run.
	maxReason = 512
	// schedulingTime is how long a Pod may wait for a node: until the Pod that it replaces is gone, or a new node is
	// there.
	schedulingTime = time.Minute
	// readinessTime is how long a Pod that runs may take to become ready, or to be so again.
	readinessTime = time.Minute
)

// CrashOf returns why a Pod cannot run, or nothing. A Pod that has yet to start is no crash, nor is one that recovered.
func CrashOf(pod *corev1.Pod, now time.Time) string {
	if pod.DeletionTimestamp != nil {
		return ""
	}
	c := podstate.Condition(pod, corev1.PodScheduled)
	if c != nil && c.Status == corev1.ConditionFalse && now.Sub(c.LastTransitionTime.Time) >= schedulingTime {
		return crash(fmt.Sprintf("Pod %q", pod.Name), "no node accepts it", c.Reason, c.Message)
	}
	name := fmt.Sprintf("Pod %q on node %q", pod.Name, pod.Spec.NodeName)
	if pod.Status.Phase == corev1.PodFailed {
		return crash(name, "the Pod has failed", pod.Status.Reason, pod.Status.Message)
	}
	for _, c := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		// First: a container that fails repeatedly alternates between starting and waiting, but how it exited stays the same.
		if t := c.LastTerminationState.Terminated; t != nil && !c.Ready && c.RestartCount > 0 {
			return crash(name, "container "+c.Name, t.Reason, fmt.Sprintf("it has exited with code %d", t.ExitCode), t.Message)
		}
		if w := c.State.Waiting; w != nil && w.Reason != "" && w.Reason != "ContainerCreating" &&
			w.Reason != "PodInitializing" {
			return crash(name, "container "+c.Name, w.Reason, w.Message)
		}
	}
	return ""
}

// UnreadyOf returns since when a Pod runs without being ready, or nothing.
func UnreadyOf(pod *corev1.Pod, now time.Time) string {
	if pod.DeletionTimestamp != nil || pod.Status.Phase != corev1.PodRunning {
		return ""
	}
	c := podstate.Condition(pod, corev1.PodReady)
	if c == nil || c.Status == corev1.ConditionTrue || now.Sub(c.LastTransitionTime.Time) < readinessTime {
		return ""
	}
	since := c.LastTransitionTime.UTC().Format(time.RFC3339)
	return crash(fmt.Sprintf("Pod %q on node %q", pod.Name, pod.Spec.NodeName),
		"it runs, but has not been ready since "+since, c.Message)
}

func crash(pod, what string, causes ...string) string {
	text := pod + ": " + what
	for _, part := range causes {
		if part != "" {
			text += ": " + part
		}
	}
	return strings.ToValidUTF8(text[:min(len(text), maxReason)], "")
}
