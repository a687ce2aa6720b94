// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package clone decides what a VirtualMachineClone does next: a pure function from the clone, its source, the snapshot,
// the restore and the target to the objects that are to be created and deleted, and to the clone's status.
// virt-controller applies the result, or a part of it, and calls the function again, until the clone has succeeded or
// failed. A clone is a snapshot that is restored to a new VM, with patches that give the VM another identity. ADR 0086
// explains the reasons. Names, reasons and messages are KubeVirt's (pkg/virt-controller/watch/clone) unless a comment
// says otherwise.
package clone

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/vireo-project/vireo/api/clone/v1beta1"
	snapshotv1beta1 "github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/decide/snapshot/capture"
)

// Kinds of a source.
const (
	kindVM       = "VirtualMachine"
	kindSnapshot = "VirtualMachineSnapshot"
)

// Observed contains the objects on which a clone depends. An object is nil only if it does not exist on the API server,
// or is not needed: see Needs. That a stale cache does not have it is not sufficient.
type Observed struct {
	// Now is the time.
	Now time.Time
	// Clone is the clone.
	Clone *v1beta1.VirtualMachineClone
	// Source is the VM that is cloned.
	Source *v1.VirtualMachine
	// Snapshot is the snapshot with the name SnapshotName, and Content is its content.
	Snapshot *snapshotv1beta1.VirtualMachineSnapshot
	Content  *snapshotv1beta1.VirtualMachineSnapshotContent
	// Restore is the restore with the name RestoreName.
	Restore *snapshotv1beta1.VirtualMachineRestore
	// Target is the VM with the name TargetName.
	Target *v1.VirtualMachine
	// Claims are the existing claims that the restore has created.
	Claims []*corev1.PersistentVolumeClaim
}

// Needs specifies the objects of a Observed on which the next step of a clone depends.
type Needs struct {
	Source, Snapshot, Content, Restore, Target, Claims bool
}

// NeedsOf returns what the next step of a clone depends on. Everything else in a Observed may be nil.
func NeedsOf(vmClone *v1beta1.VirtualMachineClone) Needs {
	status := &vmClone.Status
	switch status.Phase {
	case v1beta1.PhaseUnset, v1beta1.SnapshotInProgress:
		return Needs{Source: isTemporary(vmClone) && status.SnapshotName == nil, Snapshot: true,
			Content: status.Phase != v1beta1.PhaseUnset}
	case v1beta1.RestoreInProgress:
		return Needs{Snapshot: true, Content: status.RestoreName == nil, Restore: true, Target: status.RestoreName == nil}
	case v1beta1.CreatingTargetVM:
		return Needs{Target: true, Snapshot: true, Restore: true, Claims: true}
	case v1beta1.Succeeded:
		hasRestore := status.RestoreName != nil
		return Needs{Target: true, Snapshot: hasRestore, Restore: hasRestore, Claims: hasRestore}
	default:
		return Needs{}
	}
}

// SnapshotName returns the name of the snapshot that is restored: the source, or a temporary one of the source.
func SnapshotName(vmClone *v1beta1.VirtualMachineClone) string {
	if vmClone.Spec.Source != nil && vmClone.Spec.Source.Kind == kindSnapshot {
		return vmClone.Spec.Source.Name
	}
	return "tmp-snapshot-" + string(vmClone.UID)
}

// RestoreName returns the name of the restore.
func RestoreName(vmClone *v1beta1.VirtualMachineClone) string {
	return "tmp-restore-" + string(vmClone.UID)
}

// TargetName returns the name of the target. Admission sets it if it is missing, but a user may remove it again.
func TargetName(vmClone *v1beta1.VirtualMachineClone) string {
	switch {
	case vmClone.Status.TargetName != nil:
		return *vmClone.Status.TargetName
	case vmClone.Spec.Target != nil && vmClone.Spec.Target.Name != "":
		return vmClone.Spec.Target.Name
	case vmClone.Spec.Source != nil:
		return "clone-" + vmClone.Spec.Source.Name + "-" + string(vmClone.UID[:min(5, len(vmClone.UID))])
	default:
		return "clone-" + string(vmClone.UID)
	}
}

// isTemporary reports whether the clone takes a snapshot, which is deleted when it is not needed any more.
func isTemporary(vmClone *v1beta1.VirtualMachineClone) bool {
	return vmClone.Spec.Source != nil && vmClone.Spec.Source.Kind == kindVM
}

// IsUnderway reports whether a clone has not finished: it has neither succeeded nor failed.
func IsUnderway(vmClone *v1beta1.VirtualMachineClone) bool {
	return vmClone.Status.Phase != v1beta1.Succeeded && vmClone.Status.Phase != v1beta1.Failed
}

// Object is a Kubernetes object.
type Object interface {
	metav1.Object
	runtime.Object
}

// Step contains the next changes of a clone. They are independent of each other: they may be applied in any order, or
// only in part.
type Step struct {
	// Create are objects to create. One that exists already is not an error.
	Create []Object
	// Delete are existing objects to delete, with their UID as a precondition. The clone may be one of them.
	Delete []Object
	// Status is the clone's status, to be written once all changes have been applied; see Failed.
	Status *v1beta1.VirtualMachineCloneStatus
	// Events are the events to record, in this order, if the status changes.
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

// retry is the delay after which a clone that reports an error is retried, because not everything that it waits for is
// watched.
const retry = 15 * time.Second

// scope contains the input and the result of the phases.
type scope struct {
	Observed
	step   *Step
	status *v1beta1.VirtualMachineCloneStatus
}

func newScope(o Observed) *scope {
	status := o.Clone.Status.DeepCopy()
	return &scope{Observed: o, step: &Step{Status: status}, status: status}
}

// Next returns the next step of a clone. Each call advances by one phase at most, so that clients observe each of them.
func Next(o Observed) Step {
	s := newScope(o)
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

// isOwned reports whether an object belongs to the clone. An object of the same name that another client created is
// never deleted.
func (s *scope) isOwned(object metav1.Object) bool { return metav1.IsControlledBy(object, s.Clone) }

// meta returns the metadata of an object that belongs to the clone and is deleted with it.
func (s *scope) meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: s.Clone.Namespace, Name: name,
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(s.Clone, v1beta1.VirtualMachineCloneKind)},
	}
}

func (s *scope) newSnapshot() *snapshotv1beta1.VirtualMachineSnapshot {
	out := &snapshotv1beta1.VirtualMachineSnapshot{ObjectMeta: s.meta(SnapshotName(s.Clone))}
	out.Spec.Source = corev1.TypedLocalObjectReference{APIGroup: ptr.To(v1.GroupVersion.Group), Kind: kindVM,
		Name: s.Clone.Spec.Source.Name}
	return out
}

func (s *scope) newRestore(patches []string) *snapshotv1beta1.VirtualMachineRestore {
	out := &snapshotv1beta1.VirtualMachineRestore{ObjectMeta: s.meta(RestoreName(s.Clone))}
	out.Spec.Target = corev1.TypedLocalObjectReference{APIGroup: ptr.To(v1.GroupVersion.Group), Kind: kindVM,
		Name: TargetName(s.Clone)}
	out.Spec.VirtualMachineSnapshotName = SnapshotName(s.Clone)
	out.Spec.Patches = patches
	if policy := s.Clone.Spec.VolumeNamePolicy; policy != nil {
		out.Spec.VolumeRestorePolicy = ptr.To(policy.ToVolumeRestorePolicy())
	}
	return out
}

// textBackendStorage: the state of TPM and EFI identifies a guest, and must not be in two VMs.
const textBackendStorage = "Clone of source with backendstorage is not supported"

func backendStorage(template *v1.VirtualMachineInstanceTemplateSpec) string {
	if template == nil || !template.Spec.HasPersistentState() {
		return ""
	}
	return textBackendStorage
}

// withoutSnapshots returns which volumes of a VM a snapshot would not include, according to the VM's status.
func withoutSnapshots(vm *v1.VirtualMachine) string {
	if vm.Spec.Template == nil {
		return ""
	}
	var texts []string
	for i := range vm.Spec.Template.Spec.Volumes {
		volume := &vm.Spec.Template.Spec.Volumes[i]
		if !hasClaim(volume) {
			continue
		}
		index := slices.IndexFunc(vm.Status.VolumeSnapshotStatuses,
			func(status v1.VolumeSnapshotStatus) bool { return status.Name == volume.Name })
		switch {
		case index < 0:
			texts = append(texts, fmt.Sprintf("Virtual Machine volume %s snapshot support unknown", volume.Name))
		case !vm.Status.VolumeSnapshotStatuses[index].Enabled:
			texts = append(texts, fmt.Sprintf("Virtual Machine volume %s does not support snapshots", volume.Name))
		}
	}
	return joined(texts)
}

// joined joins the texts about several volumes, with a line for each as in KubeVirt.
func joined(texts []string) string { return strings.Join(texts, "\n") }

func hasClaim(volume *v1.Volume) bool {
	return volume.PersistentVolumeClaim != nil || volume.DataVolume != nil
}

// checkContent returns an error if the snapshot does not contain everything that a clone needs.
func (s *scope) checkContent() error {
	content := s.Content
	if content == nil {
		return fmt.Errorf("snapshot content %s in namespace %s does not exist", capture.ContentName(s.Snapshot),
			s.Snapshot.Namespace)
	}
	if content.Spec.VirtualMachineSnapshotName == nil {
		return fmt.Errorf("cannot get snapshot name from content %s", content.Name)
	}
	if !capture.IsContentOf(content, s.Snapshot) { // KubeVirt does not check this.
		return fmt.Errorf("snapshot content %s does not belong to snapshot %s", content.Name, s.Snapshot.Name)
	}
	if problem := capture.TooLarge(content); problem != "" {
		return errors.New(problem)
	}
	vm := content.Spec.Source.VirtualMachine
	if vm == nil || vm.Spec.Template == nil {
		return fmt.Errorf("snapshot content %s contains no VirtualMachine", content.Name) // KubeVirt crashes.
	}
	if backendStorage(vm.Spec.Template) != "" || hasState(content) {
		return fmt.Errorf("%s: snapshot %s/%s", textBackendStorage, s.Snapshot.Namespace, s.Snapshot.Name)
	}
	var texts []string
	for i := range vm.Spec.Template.Spec.Volumes {
		volume := &vm.Spec.Template.Spec.Volumes[i]
		if hasClaim(volume) &&
			!slices.ContainsFunc(content.Spec.VolumeBackups,
				func(b snapshotv1beta1.VolumeBackup) bool { return b.VolumeName == volume.Name }) {
			texts = append(texts,
				fmt.Sprintf("volume %s is not backed up in snapshot %s", volume.Name, *content.Spec.VirtualMachineSnapshotName))
		}
	}
	if len(texts) > 0 {
		return errors.New(joined(texts))
	}
	return nil
}

// hasState reports whether a snapshot contains the state of TPM and EFI. Its VM may have these because of a preference,
// which KubeVirt does not consider.
func hasState(content *snapshotv1beta1.VirtualMachineSnapshotContent) bool {
	volumes := content.Spec.Source.VirtualMachine.Spec.Template.Spec.Volumes
	return slices.ContainsFunc(content.Spec.VolumeBackups, func(b snapshotv1beta1.VolumeBackup) bool {
		return b.PersistentVolumeClaim.Labels[v1.PersistentStateLabel] != "" &&
			!slices.ContainsFunc(volumes, func(of v1.Volume) bool { return of.Name == b.VolumeName })
	})
}
