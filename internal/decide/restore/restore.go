// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package restore

import (
	"errors"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"github.com/vireo-project/vireo/api/cdi"
	"github.com/vireo-project/vireo/api/csi"
	"github.com/vireo-project/vireo/api/snapshot"
	"github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/component/printable"
	"github.com/vireo-project/vireo/internal/conditions"
	"github.com/vireo-project/vireo/internal/decide/snapshot/capture"
)

// Observed contains the objects on which a restore depends: the restore, and live objects of its namespace. They may be
// from a stale cache.
type Observed struct {
	// Now is the time.
	Now time.Time
	// Restore is the restore.
	Restore *v1beta1.VirtualMachineRestore
	// Snapshot and Content are the snapshot that is restored, and its content. Nil if they do not exist.
	Snapshot *v1beta1.VirtualMachineSnapshot
	Content  *v1beta1.VirtualMachineSnapshotContent
	// Target is the VM that the restore names. Nil if it does not exist.
	Target *v1.VirtualMachine
	// Running reports whether the target has a VMI, even a finished one.
	Running bool
	// Claims are the claims of the namespace by name.
	Claims map[string]*corev1.PersistentVolumeClaim
	// DataVolumes are the DataVolumes of the namespace by name.
	DataVolumes map[string]*cdi.DataVolume
	// VolumeSnapshots are those of the content by name.
	VolumeSnapshots map[string]*csi.VolumeSnapshot
	// Revisions are the ControllerRevisions that Revisions names, by name.
	Revisions map[string]*appsv1.ControllerRevision
	// BindingModes are those of the storage classes by name.
	BindingModes map[string]storagev1.VolumeBindingMode
	// Patches applies the patches of the restore. Nil is possible.
	Patches *Patches
	// NoDataVolumes is why DataVolumes cannot be read. Nil if DataVolumes is complete.
	NoDataVolumes error
}

// Live returns the object of which an object in Step.Update is a changed copy.
func (o *Observed) Live(changed Object) Object {
	switch changed.(type) {
	case *v1.VirtualMachine:
		return o.Target
	case *corev1.PersistentVolumeClaim:
		return o.Claims[changed.GetName()]
	case *cdi.DataVolume:
		return o.DataVolumes[changed.GetName()]
	case *appsv1.ControllerRevision:
		return o.Revisions[changed.GetName()]
	default:
		return nil
	}
}

// Restored reports whether the target has been restored. After that, only owners are set, objects deleted, and the
// target unlocked.
func (o *Observed) Restored() bool {
	return o.Target != nil && o.Target.Annotations[snapshot.LastRestoreAnnotation] == mark(o.Restore)
}

// Object is a Kubernetes object.
type Object interface {
	metav1.Object
	runtime.Object
}

// Step contains the next changes of a restore. They are independent of each other: they may be applied in any order, or
// only in part.
type Step struct {
	// Check is the target as a later step creates or writes it, or nil. The changes are applied only if the API server
	// accepts it in a dry run; see Refused. A step without changes has none.
	Check *v1.VirtualMachine
	// Create are objects to create. That one exists already is not an error: the cache was stale.
	Create []Object
	// Update are changed copies of live objects to write, with their resource version as a precondition.
	Update []Object
	// Delete are live objects to delete, with their UID as a precondition.
	Delete []Object
	// Lock and Unlock set and remove restoreInProgress in the target's status. Unlock also removes memoryDumpRequest,
	// because the volume of a memory dump is not restored.
	Lock, Unlock bool
	// Stop stops the target permanently.
	Stop bool
	// Status is the restore's status, to be written once the changes have been applied; see Failed. A step that changes
	// the planned volumes in the status has no other changes.
	Status *v1beta1.VirtualMachineRestoreStatus
	// Event is to be recorded if the status changes.
	Event *Event
	// RequeueAfter is when to call Next again even if nothing changes; zero means never.
	RequeueAfter time.Duration
}

// Event is an event of the restore.
type Event struct {
	// Type is Normal or Warning.
	Type string
	// Reason and Note are its texts.
	Reason, Note string
}

// A restore that reports an error is retried, because not everything that it waits for is watched. The delay grows from
// retry to maxRetry while it reports errors.
const (
	retry    = 15 * time.Second
	maxRetry = 5 * time.Minute
)

// stages are the stages of a restore. Each returns false, or an error, until it is done.
var stages = []func(*scope) (bool, error){
	initialize,
	awaitOwner,
	awaitTarget,
	checkSnapshot,
	checkImporter,
	lock,
	planVolumes,
	// This checks everything that could fail later, before the first claim is deleted.
	checkPlan,
	restoreClaims,
	restoreDataVolumes,
	restoreState,
	restoreRevisions,
	restoreTarget,
}

// finalStages follow once the target has been restored. It is restored only once: later changes of it are the user's.
var finalStages = []func(*scope) (bool, error){
	initialize,
	awaitOwner,
	adopt,
	deleteObsolete,
	unlock,
	complete,
}

// Next returns the next step of a restore. If it contains no change, the restore waits for one of the objects, or has
// finished. A step that reports an error contains no changes.
func Next(o Observed) Step {
	s := &scope{Observed: o, step: &Step{Status: o.Restore.Status.DeepCopy()}}
	if Finished(o.Restore.Status) {
		return *s.step
	}
	list := stages
	if o.Restored() {
		list = finalStages
	}
	for _, stage := range list {
		done, err := stage(s)
		var never *impossibleError
		switch {
		case errors.As(err, &never):
			s.fail(printable.Text(err.Error(), maxReason))
		case err != nil:
			s.report(err)
		}
		if !done || err != nil {
			break
		}
	}
	if len(s.step.Create)+len(s.step.Update)+len(s.step.Delete) == 0 {
		s.step.Check = nil
	}
	return *s.step
}

// Failed returns the step that reports that the changes of a step could not be applied.
func Failed(o Observed, err error) Step {
	s := withoutChanges(o)
	s.report(err)
	return *s.step
}

// Refused returns the step that ends a restore whose VM is not valid. A retry would not help, because neither the
// restore nor the snapshot can change. Its only change unlocks the target.
func Refused(o Observed, err error) Step {
	s := withoutChanges(o)
	s.fail(printable.Text(err.Error(), maxReason))
	return *s.step
}

// Released returns the step that ends a restore that is being deleted: the target is unlocked in its current state, and
// the claims are kept.
func Released(o Observed) Step {
	s := withoutChanges(o)
	s.step.Unlock = s.holdsLock()
	s.progress(corev1.ConditionFalse, reasonDeleting, reasonDeleting)
	return *s.step
}

// withoutChanges returns a scope with a step that changes nothing.
func withoutChanges(o Observed) *scope {
	s := &scope{Observed: o, step: &Step{Status: o.Restore.Status.DeepCopy()}}
	if s.step.Status == nil {
		s.step.Status = &v1beta1.VirtualMachineRestoreStatus{Complete: ptr.To(false)}
	}
	return s
}

// scope contains the input and the result of the stages.
type scope struct {
	Observed
	step *Step
	// volumes are the volumes to restore.
	volumes []volume
	// written is the target to create, or its changed copy.
	written *v1.VirtualMachine
}

// impossibleError is a permanent error. A retry would not help, because a restore and its snapshot are immutable.
type impossibleError struct{ error }

// Finished reports whether a restore with this status has finished. It fails permanently only if its target runs, if
// patches cannot be applied, or if the restored VM would not be valid.
func Finished(status *v1beta1.VirtualMachineRestoreStatus) bool {
	return status != nil &&
		(ptr.Deref(status.Complete, false) || conditions.IsTrue(status.Conditions, v1beta1.ConditionFailure))
}

// initialize writes the first status.
func initialize(s *scope) (bool, error) {
	if s.step.Status != nil {
		return true, nil
	}
	s.step.Status = &v1beta1.VirtualMachineRestoreStatus{Complete: ptr.To(false)}
	s.progress(corev1.ConditionTrue, reasonInitializing, reasonInitializing)
	return false, nil
}

// awaitOwner waits if the VM that owns the restore was deleted or is being deleted, until the garbage collector deletes
// the restore. KubeVirt may recreate the VM that the user has just deleted.
func awaitOwner(s *scope) (bool, error) {
	owner := metav1.GetControllerOf(s.Restore)
	if owner == nil || owner.Kind != v1.VirtualMachineGroupVersionKind.Kind {
		return true, nil
	}
	return s.Target != nil && s.Target.UID == owner.UID && s.Target.DeletionTimestamp == nil, nil
}

// checkImporter returns an error if DataVolumes are needed and cannot be read: a DataVolume that cannot be read must
// not be treated as deleted.
func checkImporter(s *scope) (bool, error) {
	if s.NoDataVolumes == nil || !s.usesDataVolumes() {
		return true, nil
	}
	return false, s.NoDataVolumes
}

var dataVolume = schema.GroupKind{Group: cdi.GroupVersion.Group, Kind: "DataVolume"}

// usesDataVolumes reports whether DataVolumes are restored or replaced.
func (s *scope) usesDataVolumes() bool {
	if len(s.source().Spec.DataVolumeTemplates) > 0 || s.Target != nil && len(s.Target.Spec.DataVolumeTemplates) > 0 {
		return true
	}
	return slices.ContainsFunc(s.Content.Spec.VolumeBackups, func(backup v1beta1.VolumeBackup) bool {
		live := s.Claims[backup.PersistentVolumeClaim.Name]
		if live == nil {
			return false
		}
		owner := metav1.GetControllerOf(live)
		return owner != nil && schema.FromAPIVersionAndKind(owner.APIVersion, owner.Kind).GroupKind() == dataVolume
	})
}

// checkSnapshot returns an error unless the snapshot can be restored to the target.
func checkSnapshot(s *scope) (bool, error) {
	name := s.Restore.Namespace + "/" + s.Restore.Spec.VirtualMachineSnapshotName
	switch snap := s.Snapshot; {
	case snap == nil:
		return false, fmt.Errorf("VMSnapshot %s does not exist", name)
	case snap.Status != nil && snap.Status.Phase == v1beta1.Failed:
		return false, fmt.Errorf("VMSnapshot %s failed and is invalid to use", name)
	case snap.Status == nil, !ptr.Deref(snap.Status.ReadyToUse, false):
		return false, fmt.Errorf("VMSnapshot %s not ready", name)
	case s.Target != nil && snap.Status.SourceUID != nil && *snap.Status.SourceUID != s.Target.UID:
		return false, errors.New("restore source and restore target are different but restore target already exists")
	}
	content := s.Content
	switch {
	case content == nil:
		return false, fmt.Errorf("VMSnapshotContent of VMSnapshot %s does not exist", name)
	case content.Status == nil, !ptr.Deref(content.Status.ReadyToUse, false):
		return false, fmt.Errorf("VMSnapshotContent %s/%s not ready", content.Namespace, content.Name)
	case s.source() == nil, s.source().Spec.Template == nil:
		return false, fmt.Errorf("VMSnapshotContent %s/%s contains no VirtualMachine", content.Namespace, content.Name)
	}
	if problem := capture.TooLarge(content); problem != "" {
		return false, errors.New(problem)
	}
	return true, nil
}

// source returns the VM in the snapshot.
func (s *scope) source() *v1beta1.VirtualMachine { return s.Content.Spec.Source.VirtualMachine }

// targetsSource reports whether the target has the name of the VM in the snapshot. It need not be the same object,
// because the VM may have been deleted since.
func (s *scope) targetsSource() bool { return s.Restore.Spec.Target.Name == s.source().Name }

// lock locks an existing target, so that it does not start and no snapshot of it is taken.
func lock(s *scope) (bool, error) {
	if s.Target == nil {
		return true, nil
	}
	switch restoreName := s.Target.Status.RestoreInProgress; {
	case restoreName == nil && s.Target.Status.SnapshotInProgress != nil:
		return false, fmt.Errorf("snapshot %q in progress", *s.Target.Status.SnapshotInProgress)
	case restoreName == nil:
		s.step.Lock = true
		return false, nil
	case *restoreName != s.Restore.Name:
		return false, fmt.Errorf("vm restore %s in progress", *restoreName)
	default:
		return true, nil
	}
}

func unlock(s *scope) (bool, error) {
	s.step.Unlock = s.holdsLock()
	return !s.step.Unlock, nil
}

// holdsLock reports whether the target is locked for this restore.
func (s *scope) holdsLock() bool {
	return s.Target != nil && ptr.Equal(s.Target.Status.RestoreInProgress, &s.Restore.Name)
}
