// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package clone

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/vireo-project/vireo/api/clone"
	"github.com/vireo-project/vireo/api/clone/v1beta1"
	snapshotv1beta1 "github.com/vireo-project/vireo/api/snapshot/v1beta1"
	"github.com/vireo-project/vireo/internal/conditions"
)

// begin starts the clone with the snapshot, once the source exists and can be cloned.
func (s *scope) begin() {
	source, target := s.Clone.Spec.Source, s.Clone.Spec.Target
	switch {
	case target != nil && target.Kind != kindVM:
		s.pending("", "target type is unknown: "+target.Kind)
	case isTemporary(s.Clone):
		s.takeSnapshot()
	case source == nil || source.Kind != kindSnapshot:
		kind := ""
		if source != nil {
			kind = source.Kind
		}
		s.pending("", fmt.Sprintf("clone %s is defined with an unknown source type %s", s.Clone.Name, kind))
	case s.Snapshot == nil:
		s.awaitSource()
	default:
		s.advance(v1beta1.SnapshotInProgress)
	}
}

// awaitSource reports that the source does not exist.
func (s *scope) awaitSource() {
	source := s.Clone.Spec.Source
	s.pending(clone.SourceDoesNotExistEvent,
		fmt.Sprintf("Source doesnt exist: %s %s/%s", source.Kind, s.Clone.Namespace, source.Name))
}

// takeSnapshot creates the temporary snapshot.
func (s *scope) takeSnapshot() {
	name := SnapshotName(s.Clone)
	switch {
	case s.Snapshot != nil && !s.isOwned(s.Snapshot):
		s.report(foreign("VirtualMachineSnapshot", s.Snapshot))
		return
	case s.Snapshot != nil: // From an earlier attempt.
	case s.Source == nil:
		s.awaitSource()
		return
	default:
		if text := backendStorage(s.Source.Spec.Template); text != "" {
			s.fail(clone.SourceWithBackendStorageInvalidEvent, text, fmt.Sprintf("VM %s/%s", s.Source.Namespace, s.Source.Name))
			return
		}
		if text := withoutSnapshots(s.Source); text != "" {
			s.pending(clone.VMVolumeSnapshotsInvalidEvent, text)
			return
		}
		s.step.Create = append(s.step.Create, s.newSnapshot())
	}
	s.status.SnapshotName = ptr.To(name)
	s.advance(v1beta1.SnapshotInProgress)
	s.record(clone.SnapshotCreatedEvent, fmt.Sprintf("created snapshot %s for clone %s", name, s.Clone.Name))
}

// awaitSnapshot waits until the snapshot can be restored. KubeVirt waits forever for a snapshot that has failed or was
// deleted.
func (s *scope) awaitSnapshot() {
	if isTemporary(s.Clone) && s.status.SnapshotName == nil {
		s.takeSnapshot()
		return
	}
	if s.lacksSnapshot() {
		return
	}
	switch vmSnapshot := s.Snapshot; {
	case vmSnapshot.Status != nil && vmSnapshot.Status.Phase == snapshotv1beta1.Failed:
		s.fail(clone.SnapshotFailedEvent, fmt.Sprintf("snapshot %s has failed", vmSnapshot.Name), snapshotProblem(vmSnapshot))
	case !IsReady(vmSnapshot):
		s.working(snapshotProblem(vmSnapshot))
	default:
		if err := s.checkContent(); err != nil {
			s.fail(clone.SnapshotContentInvalidEvent, err.Error(), "")
			return
		}
		s.advance(v1beta1.RestoreInProgress)
		s.record(clone.SnapshotReadyEvent,
			fmt.Sprintf("snapshot %s for clone %s is ready to use", s.Snapshot.Name, s.Clone.Name))
	}
}

// IsReady reports whether a snapshot can be restored.
func IsReady(vmSnapshot *snapshotv1beta1.VirtualMachineSnapshot) bool {
	return vmSnapshot.Status != nil && ptr.Deref(vmSnapshot.Status.ReadyToUse, false)
}

// lacksSnapshot reports whether there is no usable snapshot, and then sets the status. If the snapshot is the clone's
// source, it may be created again.
func (s *scope) lacksSnapshot() bool {
	switch {
	case s.Snapshot == nil && !isTemporary(s.Clone):
		s.awaitSource()
	case s.Snapshot == nil:
		s.fail(clone.SnapshotDeletedEvent, fmt.Sprintf("snapshot %s does not exist anymore", SnapshotName(s.Clone)), "")
	case isTemporary(s.Clone) && !s.isOwned(s.Snapshot):
		s.report(foreign("VirtualMachineSnapshot", s.Snapshot))
	default:
		return false
	}
	return true
}

// restore restores the snapshot to the target.
func (s *scope) restore() {
	switch vmRestore := s.Restore; {
	case vmRestore == nil && s.status.RestoreName != nil:
		// With a second restore, the claims of the first one would remain. KubeVirt waits forever.
		s.fail(clone.RestoreDeletedEvent, fmt.Sprintf("restore %s does not exist anymore", *s.status.RestoreName), "")
	case vmRestore != nil && !s.isOwned(vmRestore):
		s.report(foreign("VirtualMachineRestore", vmRestore))
	case vmRestore != nil && s.status.RestoreName == nil: // From an earlier attempt.
		s.restoring()
	case vmRestore != nil && vmRestore.Status != nil && ptr.Deref(vmRestore.Status.Complete, false):
		s.status.TargetName = ptr.To(vmRestore.Spec.Target.Name)
		s.advance(v1beta1.CreatingTargetVM)
		s.record(clone.RestoreReadyEvent,
			fmt.Sprintf("restore %s for clone %s is ready to use", vmRestore.Name, s.Clone.Name))
	case vmRestore != nil && vmRestore.Status != nil &&
		conditions.IsTrue(vmRestore.Status.Conditions, snapshotv1beta1.ConditionFailure):
		// KubeVirt treats this restore as complete.
		s.fail(clone.RestoreFailedEvent, fmt.Sprintf("restore %s has failed", vmRestore.Name), restoreProblem(vmRestore))
	case s.lacksSnapshot():
	case vmRestore != nil:
		s.working(restoreProblem(vmRestore))
	default:
		s.createRestore()
	}
}

func (s *scope) createRestore() {
	if err := s.checkContent(); err != nil {
		s.fail(clone.SnapshotContentInvalidEvent, err.Error(), "")
		return
	}
	name := TargetName(s.Clone)
	if s.Target != nil {
		// KubeVirt replaces the disks if the snapshot was taken of this VM, and waits forever otherwise.
		s.refuse(fmt.Errorf("VirtualMachine %s/%s exists already: delete it, or clone to another name", s.Clone.Namespace,
			name))
		return
	}
	list, err := patches(s.Clone, s.Content.Spec.Source.VirtualMachine, name)
	if err != nil {
		// KubeVirt retries forever, although neither the clone nor the snapshot can change.
		s.fail(clone.RestoreCreationFailedEvent, fmt.Sprintf("error generating patches for clone %s: %v", s.Clone.Name, err),
			"")
		return
	}
	s.step.Create = append(s.step.Create, s.newRestore(list))
	s.restoring()
}

// restoring reports that the restore exists.
func (s *scope) restoring() {
	name := RestoreName(s.Clone)
	s.status.RestoreName = ptr.To(name)
	s.working("")
	s.record(clone.RestoreCreatedEvent, fmt.Sprintf("created restore %s for clone %s", name, s.Clone.Name))
}

// awaitTarget ends the clone when the target, which the restore has created, exists. As in KubeVirt, it waits for the
// target, because only a clone that has succeeded is deleted with its target.
func (s *scope) awaitTarget() {
	name := TargetName(s.Clone)
	if s.Target == nil {
		s.working(fmt.Sprintf("target VM %s is not created yet for clone %s", name, s.Clone.Name))
		return
	}
	s.status.Phase = v1beta1.Succeeded
	s.status.CreationTime = ptr.To(metav1.NewTime(s.Now))
	s.succeeded()
	s.record(clone.TargetVMCreatedEvent, fmt.Sprintf("created target VM %s for clone %s", name, s.Clone.Name))
	s.cleanUp()
}

// finish deletes the snapshot and the restore when they are no longer needed, and the clone itself when its target was
// deleted.
func (s *scope) finish() {
	switch {
	case s.Target == nil:
		s.step.Delete = append(s.step.Delete, s.Clone)
	case s.status.RestoreName != nil:
		s.cleanUp()
	}
}

// IsWaiting reports whether a claim waits until it is filled from the snapshot.
func IsWaiting(claim *corev1.PersistentVolumeClaim) bool {
	return claim.Status.Phase != corev1.ClaimBound
}

// cleanUp deletes the temporary objects once the claims are filled from the snapshot, some of them only when the target
// starts.
func (s *scope) cleanUp() {
	if slices.ContainsFunc(s.Claims, IsWaiting) {
		return
	}
	if vmSnapshot := s.Snapshot; isTemporary(s.Clone) && vmSnapshot != nil && s.isOwned(vmSnapshot) &&
		vmSnapshot.DeletionTimestamp == nil {
		s.step.Delete = append(s.step.Delete, vmSnapshot)
	}
	if vmRestore := s.Restore; vmRestore != nil && s.isOwned(vmRestore) && vmRestore.DeletionTimestamp == nil {
		s.step.Delete = append(s.step.Delete, vmRestore)
	}
	s.status.SnapshotName, s.status.RestoreName = nil, nil
	s.succeeded()
	s.record(clone.PVCBoundEvent, fmt.Sprintf("all PVC for clone %s are bound", s.Clone.Name))
}

func foreign(kind string, object metav1.Object) error {
	return fmt.Errorf("%s %s/%s exists already and does not belong to the clone: delete it", kind, object.GetNamespace(),
		object.GetName())
}
