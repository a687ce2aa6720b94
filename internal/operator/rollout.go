// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package operator

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
)

// Rollout is how far the node agent's DaemonSet is.
type Rollout struct {
	// Done says that every node has the wanted agent and that it is ready.
	Done bool
	// Message says what is being waited for.
	Message string
}

// RolloutOf reads the progress of a DaemonSet. It is pure.
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
