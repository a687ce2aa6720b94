// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package resize

import (
	"time"
)

// Reasons of the VMI conditions HotVCPUChange and HotMemoryChange. KubeVirt sets none while a change is in progress.
const (
	// ReasonDeferred: the node has no room yet. The message is the kubelet's.
	ReasonDeferred = "PodResizeDeferred"
	// ReasonForbidden: a quota, a LimitRange or a policy refuses the new resources of the Pod.
	ReasonForbidden = "PodResizeForbidden"
	// ReasonFailing: the kubelet fails to change the Pod's resources, and retries.
	ReasonFailing = "PodResizeError"
	// ReasonGuest: the guest was granted its new size and does not have it yet.
	ReasonGuest = "WaitingForGuest"
	// ReasonMigration: the guest gets its new size by a migration.
	ReasonMigration = "MigrationRequired"
	// ReasonRestart: the guest gets its new size when it is restarted. The status of the condition is False.
	ReasonRestart = "RestartRequired"
)

// Patience is how long a node may have no room for the Pod's new resources before the guest has to migrate.
const Patience = 2 * time.Minute

// View is what a verdict depends on.
type View struct {
	// Obstacle is why the Pod's resources cannot change in place, or "". See Obstacle.
	Obstacle string
	// Forbidden is the API server's refusal of the resources by a quota or policy, and Refused any other refusal that a retry
	// does not change. Both are "" if there is none.
	Forbidden, Refused string
	// Progress is what the kubelet reports.
	Progress Progress
	// Stays is why the guest does not migrate by itself, or "" if it does.
	Stays string
	// Now is the time.
	Now time.Time
}

// Verdict is what is reported about a change that is not done.
type Verdict struct {
	// Restart reports whether the guest gets its new size only when it is restarted, and Migrate whether it migrates for it.
	Restart, Migrate bool
	// Reason and Message are those of the condition. They are empty while nothing hinders the change.
	Reason, Message string
	// Again is when the verdict may change without an event, or 0.
	Again time.Duration
}

// retry is the interval after which refused resources are tried again. No event reports that a quota has room.
const retry = 30 * time.Second

// Judge returns what is reported about a change, and whether it needs another Pod.
func Judge(v View) Verdict {
	switch waited := v.Now.Sub(v.Progress.Since); {
	case v.Obstacle != "":
		return v.elsewhere(v.Obstacle)
	case v.Refused != "":
		return v.elsewhere("the API server refuses the new resources of the launcher Pod: " + v.Refused)
	case v.Forbidden != "":
		return Verdict{Reason: ReasonForbidden, Again: retry, Message: "The launcher Pod may not have the resources, so the guest keeps its size: " + v.Forbidden}
	case v.Progress.State == Infeasible:
		return v.elsewhere("the node cannot resize the launcher Pod: " + v.Progress.Message)
	case v.Progress.State == Deferred && waited >= Patience:
		return v.elsewhere("the node has no room for the larger launcher Pod: " + v.Progress.Message)
	case v.Progress.State == Deferred:
		return Verdict{
			Reason: ReasonDeferred, Again: Patience - waited,
			Message: "The node has no room for the larger launcher Pod yet, so the guest keeps its size: " + v.Progress.Message,
		}
	case v.Progress.State == Failing:
		return Verdict{Reason: ReasonFailing, Message: "The kubelet fails to resize the launcher Pod, and retries: " + v.Progress.Message}
	default:
		return Verdict{}
	}
}

// elsewhere returns the verdict about a change that needs another Pod.
func (v *View) elsewhere(why string) Verdict {
	if v.Stays == "" {
		return Verdict{Migrate: true, Reason: ReasonMigration, Message: "The guest gets its new size by a migration: " + why}
	}
	return Verdict{
		Restart: true, Reason: ReasonRestart,
		Message: "The guest gets its new size when it is restarted: " + why + ". It does not migrate for it: " + v.Stays,
	}
}
