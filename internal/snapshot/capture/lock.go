// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package capture

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/vireo-project/vireo/api/snapshot"
	v1 "github.com/vireo-project/vireo/api/v1"
)

// Source is the current state of the VM of a snapshot.
type Source struct {
	// VM is nil if it does not exist.
	VM *v1.VirtualMachine
	// Volumes are its volumes.
	Volumes []Volume
	// Unfilled are the claims that the importer has not filled, by name, with what users have to do, or "" if they only have to wait.
	Unfilled map[string]string
	// Online reports whether it has a VMI, even a finished one.
	Online bool
	// Pods is how many unfinished Pods use its claims. If it is greater than 0, there may be more.
	Pods int
}

// Locked reports whether the VM is locked for a snapshot. The lock is two writes: the status and the finalizer.
func (s Source) Locked(name string) bool {
	return s.VM != nil && s.VM.Status.SnapshotInProgress != nil && *s.VM.Status.SnapshotInProgress == name &&
		slices.Contains(s.VM.Finalizers, snapshot.SourceFinalizer)
}

// Obstacle returns why the VM cannot be locked for a snapshot now, or "".
func (s Source) Obstacle(name string) string {
	for i := range s.Volumes {
		v := &s.Volumes[i]
		obstacle := s.obstacleOf(v)
		if obstacle == "" {
			continue
		}
		text := fmt.Sprintf("source %s/%s %s: %s", s.VM.Namespace, s.VM.Name, obstacle, v.ClaimName)
		if problem := s.Unfilled[v.ClaimName]; problem != "" && obstacle == notPopulated {
			text += ": " + problem
		}
		return text
	}
	status := &s.VM.Status
	switch {
	case !s.Online && s.Pods > 0:
		return fmt.Sprintf("source is offline but %d pods using PVCs %v", s.Pods, s.claims())
	case status.SnapshotInProgress != nil && *status.SnapshotInProgress != name:
		return fmt.Sprintf("snapshot %q in progress", *status.SnapshotInProgress)
	case status.RestoreInProgress != nil:
		// KubeVirt would store a partially restored VM.
		return fmt.Sprintf("restore %q in progress", *status.RestoreInProgress)
	}
	return ""
}

// notPopulated is the obstacle of a claim that the importer has not filled.
const notPopulated = "volume not populated"

func (s Source) obstacleOf(v *Volume) string {
	_, unfilled := s.Unfilled[v.ClaimName]
	switch {
	case v.ClaimName == "":
		return ""
	case v.Claim == nil:
		return "volume doesnt exist"
	case v.Claim.DeletionTimestamp != nil:
		return "volume is being deleted"
	case v.Claim.Status.Phase != corev1.ClaimBound:
		return "volume not bound"
	case unfilled:
		return notPopulated
	case v.Undecided:
		return v.Reason
	default:
		return ""
	}
}

func (s Source) claims() []string {
	var names []string
	for i := range s.Volumes {
		if name := s.Volumes[i].ClaimName; name != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}
