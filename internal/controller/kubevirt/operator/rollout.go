// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package operator

import (
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/utils/ptr"
)

// Rollout is the progress of a component's rollout.
type Rollout struct {
	// Done is true when all Pods are updated and ready.
	Done bool
	// Message is what the rollout is waiting for, or that it is done.
	Message string
}

// RolloutOf returns the progress of a DaemonSet.
func RolloutOf(ds *appsv1.DaemonSet) Rollout {
	s := ds.Status
	switch {
	case s.ObservedGeneration < ds.Generation:
		return Rollout{Message: fmt.Sprintf("DaemonSet %s is not yet observed by its controller", ds.Name)}
	case s.UpdatedNumberScheduled < s.DesiredNumberScheduled:
		return Rollout{Message: fmt.Sprintf("%s is updated on %d of %d nodes", ds.Name, s.UpdatedNumberScheduled, s.DesiredNumberScheduled)}
	case s.NumberReady < s.DesiredNumberScheduled:
		return Rollout{Message: fmt.Sprintf("%s is ready on %d of %d nodes", ds.Name, s.NumberReady, s.DesiredNumberScheduled)}
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

// Join returns the first rollout that is not done, or one that is done if all are.
func Join(rollouts ...Rollout) Rollout {
	messages := make([]string, 0, len(rollouts))
	for _, r := range rollouts {
		if !r.Done {
			return r
		}
		messages = append(messages, r.Message)
	}
	return Rollout{Done: true, Message: strings.Join(messages, ", ")}
}
