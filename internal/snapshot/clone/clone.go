// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package clone

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/vireo-project/vireo/api/clone/v1beta1"
	snapshotv1beta1 "github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
)

// Kinds of a source.
const (
	kindVM       = "VirtualMachine"
	kindSnapshot = "VirtualMachineSnapshot"
)

// World is what a clone depends on. An object is nil only if the API server does not have it: a cache that is behind does not count.
// See Needs.
type World struct {
	// Now is the time.
	Now time.Time
	// Clone is the clone.
	Clone *v1beta1.VirtualMachineClone
	// Source is the VM that is cloned.
	Source *v1.VirtualMachine
	// Snapshot is the one that SnapshotName names, and Content is its content.
	Snapshot *snapshotv1beta1.VirtualMachineSnapshot
	Content  *snapshotv1beta1.VirtualMachineSnapshotContent
	// Restore is the one that RestoreName names.
	Restore *snapshotv1beta1.VirtualMachineRestore
	// Target is the VM that TargetName names.
	Target *v1.VirtualMachine
	// Claims are those that the restore has made and that exist.
	Claims []*corev1.PersistentVolumeClaim
}

// Needs is what of a World the next step of a clone depends on.
type Needs struct {
	Source, Snapshot, Content, Restore, Target, Claims bool
}

// NeedsOf returns what the next step of a clone depends on. Everything else in a World may be nil.
func NeedsOf(of *v1beta1.VirtualMachineClone) Needs {
	status := &of.Status
	switch status.Phase {
	case v1beta1.PhaseUnset, v1beta1.SnapshotInProgress:
		return Needs{Source: isTemporary(of) && status.SnapshotName == nil, Snapshot: true, Content: status.Phase != v1beta1.PhaseUnset}
	case v1beta1.RestoreInProgress:
		return Needs{Snapshot: true, Content: status.RestoreName == nil, Restore: true, Target: status.RestoreName == nil}
	case v1beta1.CreatingTargetVM:
		return Needs{Target: true, Snapshot: true, Restore: true, Claims: true}
	case v1beta1.Succeeded:
		left := status.RestoreName != nil
		return Needs{Target: true, Snapshot: left, Restore: left, Claims: left}
	default:
		return Needs{}
	}
}

// SnapshotName returns the name of the snapshot that is restored: the source, or a temporary one of the source.
func SnapshotName(of *v1beta1.VirtualMachineClone) string {
	if of.Spec.Source != nil && of.Spec.Source.Kind == kindSnapshot {
		return of.Spec.Source.Name
	}
	return "tmp-snapshot-" + string(of.UID)
}

// RestoreName returns the name of the restore.
func RestoreName(of *v1beta1.VirtualMachineClone) string { return "tmp-restore-" + string(of.UID) }

// TargetName returns the name of the target. Admission gives one to a clone without, but a user may remove it again.
func TargetName(of *v1beta1.VirtualMachineClone) string {
	switch {
	case of.Status.TargetName != nil:
		return *of.Status.TargetName
	case of.Spec.Target != nil && of.Spec.Target.Name != "":
		return of.Spec.Target.Name
	case of.Spec.Source != nil:
		return "clone-" + of.Spec.Source.Name + "-" + string(of.UID[:min(5, len(of.UID))])
	default:
		return "clone-" + string(of.UID)
	}
}

// isTemporary reports whether the clone takes a snapshot, which is deleted when it is not needed any more.
func isTemporary(of *v1beta1.VirtualMachineClone) bool {
	return of.Spec.Source != nil && of.Spec.Source.Kind == kindVM
}

// IsUnderway reports whether a clone has neither succeeded nor failed.
func IsUnderway(of *v1beta1.VirtualMachineClone) bool {
	return of.Status.Phase != v1beta1.Succeeded && of.Status.Phase != v1beta1.Failed
}

// Object is a Kubernetes object.
type Object interface {
	metav1.Object
	runtime.Object
}

// Step is what a clone does next. Its changes are independent of each other: they may be applied in any order, or only in part.
type Step struct {
	// Create are objects to create. One that exists already is not an error.
	Create []Object
	// Delete are live objects, to delete if the object still has their UID. The clone may be one of them.
	Delete []Object
	// Status is the clone's status, to be written once all changes have been applied; see Failed.
	Status *v1beta1.VirtualMachineCloneStatus
	// Events are to be recorded, in this order, if the status changes.
	Events []Event
	// RequeueAfter is when to call Next again even if nothing changes; zero means never.
	RequeueAfter time.Duration
}

// Event is an event of the clone.
type Event struct {
	// Type is Normal or Warning.
	Type string
	// Reason and Note are its texts.
	Reason, Note string
}

// retry is when a clone that reports an error tries again, because not everything that it waits for is watched.
const retry = 15 * time.Second

// scope is what the phases work on.
type scope struct {
	World
	step   *Step
	status *v1beta1.VirtualMachineCloneStatus
}

func newScope(w World) *scope {
	status := w.Clone.Status.DeepCopy()
	return &scope{World: w, step: &Step{Status: status}, status: status}
}

// Next returns what a clone does next. Each call advances by one phase at most, so that clients see each of them.
func Next(w World) Step {
	s := newScope(w)
	switch s.status.Phase {
	case v1beta1.PhaseUnset:
		s.begin()
	case v1beta1.SnapshotInProgress:
		s.awaitSnapshot()
	case v1beta1.RestoreInProgress:
		s.restore()
	case v1beta1.CreatingTargetVM:
		s.awaitTarget()
	case v1beta1.Succeeded:
		s.finish()
	case v1beta1.Failed, v1beta1.Unknown:
	}
	return *s.step
}

// isOurs reports whether an object belongs to the clone. An object of the same name that another client created is never deleted.
func (s *scope) isOurs(object metav1.Object) bool { return metav1.IsControlledBy(object, s.Clone) }

// meta returns the metadata of an object that belongs to the clone and is deleted with it.
func (s *scope) meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: s.Clone.Namespace, Name: name,
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(s.Clone, v1beta1.VirtualMachineCloneKind)},
	}
}

func (s *scope) newSnapshot() *snapshotv1beta1.VirtualMachineSnapshot {
	out := &snapshotv1beta1.VirtualMachineSnapshot{ObjectMeta: s.meta(SnapshotName(s.Clone))}
	out.Spec.Source = corev1.TypedLocalObjectReference{APIGroup: ptr.To(v1.GroupVersion.Group), Kind: kindVM, Name: s.Clone.Spec.Source.Name}
	return out
}

func (s *scope) newRestore(patches []string) *snapshotv1beta1.VirtualMachineRestore {
	out := &snapshotv1beta1.VirtualMachineRestore{ObjectMeta: s.meta(RestoreName(s.Clone))}
	out.Spec.Target = corev1.TypedLocalObjectReference{APIGroup: ptr.To(v1.GroupVersion.Group), Kind: kindVM, Name: TargetName(s.Clone)}
	out.Spec.VirtualMachineSnapshotName = SnapshotName(s.Clone)
	out.Spec.Patches = patches
	if policy := s.Clone.Spec.VolumeNamePolicy; policy != nil {
		out.Spec.VolumeRestorePolicy = ptr.To(policy.ToVolumeRestorePolicy())
	}
	return out
}
